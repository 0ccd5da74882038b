# A thin alias: the steps live in scripts/dev.py, since not every system has make.
PYTHON ?= python3
ARGS ?=
VERBS := chat test limits check format bench wheel wheels setup build clean help

.DEFAULT_GOAL := help
.PHONY: $(VERBS)

$(VERBS):
	@$(PYTHON) scripts/dev.py $@ $(ARGS)
