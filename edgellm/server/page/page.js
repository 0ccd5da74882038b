"use strict";
// The chat. Conversations live in this browser's storage; the server keeps nothing.

const $ = (id) => document.getElementById(id);
const STORE = "edgellm.conversations", OPTIONS = "edgellm.options";
const FIELDS = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "max_tokens", "seed"];

let talks = load(STORE, []);
let options = load(OPTIONS, {});
let current = null;
let running = null; // {talk, turn, abort, element}

function load(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function save() {
  try {
    localStorage.setItem(STORE, JSON.stringify(talks));
    localStorage.setItem(OPTIONS, JSON.stringify(options));
  } catch {
    say("The browser's storage is full: delete some conversations.");
  }
}

function say(text) {
  $("state").textContent = text;
}

function headers() {
  const found = { "content-type": "application/json" };
  if (options.key) found.authorization = `Bearer ${options.key}`;
  return found;
}

// ---- the server -------------------------------------------------------------------------------------------------

async function reason(answer) {
  try {
    const body = await answer.json();
    return body.error?.message ?? `The server answered ${answer.status}.`;
  } catch {
    return `The server answered ${answer.status}.`;
  }
}

async function findModels() {
  try {
    const health = await fetch("health");
    if (health.status === 503) {
      const { error } = await health.json();
      say(`${error.message}${error.progress ? ` ${Math.round(error.progress * 100)} %` : ""}`);
      setTimeout(findModels, 500);
      return;
    }
    const answer = await fetch("v1/models", { headers: headers() });
    if (answer.status === 401) {
      say("This server wants an API key.");
      openSettings(true);
      $("key").focus();
      return;
    }
    const models = (await answer.json()).data;
    $("model").replaceChildren(...models.map((model) => node("option", [model.id], { value: model.id })));
    if (models.some((model) => model.id === options.model)) $("model").value = options.model;
    const context = models[0]?.max_model_len;
    say(models.length === 1 && context ? `context ${context}` : "");
  } catch {
    say("The server cannot be reached.");
    setTimeout(findModels, 2000);
  }
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const blocks = held.split("\n\n");
    held = blocks.pop();
    for (const block of blocks) {
      if (!block.startsWith("data: ")) continue;
      const data = block.slice(6);
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

async function answerTo(talk) {
  const turn = { role: "assistant", content: "" };
  const abort = new AbortController();
  talk.turns.push(turn);
  running = { talk, turn, abort };
  show();
  const body = {
    model: $("model").value,
    messages: [
      ...(talk.system ? [{ role: "system", content: talk.system }] : []),
      ...talk.turns.slice(0, -1).filter((t) => !t.error || t.content).map(({ role, content }) => ({ role, content })),
    ],
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of FIELDS) if (options[name] !== undefined) body[name] = options[name];
  const began = performance.now();
  let n = 0;
  try {
    const answer = await fetch("v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(body), signal: abort.signal,
    });
    if (!answer.ok) throw new Error(await reason(answer));
    for await (const chunk of events(answer)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const choice = chunk.choices[0];
      const { content, reasoning_content: thoughts } = choice?.delta ?? {};
      if (thoughts) turn.thoughts = (turn.thoughts ?? "") + thoughts;
      if (content) turn.content += content;
      if (content || thoughts) {
        n += 1;
        paint();
      }
      if (choice?.finish_reason === "length") turn.cut = true;
      if (chunk.timings) turn.timings = chunk.timings;
      if (chunk.usage) turn.usage = chunk.usage;
      if (n === 1) turn.first = performance.now() - began;
    }
  } catch (error) {
    if (error.name === "AbortError") turn.stopped = true;
    else turn.error = error.message || String(error);
  } finally {
    running = null;
    save();
    show();
    $("input").focus();
  }
}

// ---- what happens -----------------------------------------------------------------------------------------------

function begin() {
  current = null;
  show();
  closeSide();
  $("input").focus();
}

function send(text) {
  if (running || !text.trim()) return;
  if (!current) {
    current = { id: `${Date.now()}-${Math.random()}`, title: text.trim().slice(0, 60), system: $("system").value, turns: [] };
    talks.unshift(current);
  }
  current.turns.push({ role: "user", content: text });
  save();
  answerTo(current);
}

function stop() {
  running?.abort.abort();
}

function regenerate(index) {
  if (running) return;
  current.turns.length = index;
  save();
  answerTo(current);
}

function edit(index) {
  if (running) return;
  const turn = current.turns[index];
  const box = node("textarea", [], { "aria-label": "Edit the message" });
  box.value = turn.content;
  const again = node("button", ["Send"], { type: "button", class: "again" });
  const leave = node("button", ["Cancel"], { type: "button" });
  const element = $("log").children[index];
  element.classList.add("edit");
  element.replaceChildren(box, node("div", [again, leave], { class: "tools" }));
  const commit = () => {
    if (!box.value.trim()) return;
    current.turns.length = index;
    send(box.value);
  };
  again.addEventListener("click", commit);
  leave.addEventListener("click", show);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); commit(); }
    if (event.key === "Escape") { event.stopPropagation(); show(); }
  });
  box.focus();
}

function remove(talk) {
  if (running?.talk === talk) stop();
  talks = talks.filter((other) => other !== talk);
  if (current === talk) current = null;
  save();
  show();
}

// ---- what is seen -----------------------------------------------------------------------------------------------

let frame = 0;
function paint() {
  if (frame) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    if (!running || running.talk !== current || !running.element) return;
    const log = $("log");
    const follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    running.element.replaceChildren(...answer(running.turn));
    if (follow) log.scrollTop = log.scrollHeight;
  });
}

function answer(turn) {
  const text = markdown(turn.content);
  if (!turn.thoughts) return [text];
  const folded = node("details", [node("summary", ["Thoughts"]), markdown(turn.thoughts)], { class: "thoughts" });
  folded.open = !turn.content; // while there is nothing else to read
  return [folded, text];
}

function figures(turn) {
  const parts = [];
  if (turn.stopped) parts.push("stopped");
  if (turn.cut) parts.push("cut off at the limit");
  const t = turn.timings;
  if (t) {
    if (t.predicted_per_second) parts.push(`${t.predicted_per_second.toFixed(1)} tokens/s`);
    parts.push(`${t.predicted_n} tokens`);
    parts.push(`prompt ${t.prompt_n + t.cache_n}${t.cache_n ? ` (${t.cache_n} cached)` : ""}`);
    if (turn.first) parts.push(`first after ${(turn.first / 1000).toFixed(2)} s`);
  }
  return parts.join(" · ");
}

function turnElement(turn, index) {
  const own = turn.role === "user";
  const live = running?.turn === turn;
  const body = node("div", own ? [turn.content] : answer(turn), { class: `body${live ? " waiting" : ""}` });
  if (live) running.element = body;
  const tools = node("div", [], { class: "tools" });
  const tool = (text, action) => {
    const button = node("button", [text], { type: "button" });
    button.addEventListener("click", () => action(button));
    tools.append(button);
  };
  if (!live) {
    tool("Copy", (button) => copyText(turn.content, button));
    if (own) tool("Edit", () => edit(index));
    else tool("Regenerate", () => regenerate(index));
  }
  if (!own) tools.append(node("span", [figures(turn)], { class: "figures" }));
  const parts = turn.error ? [body, node("div", [turn.error], { class: "error", role: "alert" }), tools] : [body, tools];
  return node("article", parts, { class: `turn ${turn.role}`, "aria-label": own ? "You" : "Answer" });
}

function show() {
  const turns = current?.turns ?? [];
  const log = $("log");
  if (turns.length) log.replaceChildren(...turns.map(turnElement));
  else log.replaceChildren(node("div", [node("h1", ["What is on your mind?"]), node("p", ["Conversations stay in this browser."])], { class: "empty" }));
  log.scrollTop = log.scrollHeight;
  $("list").replaceChildren(...talks.map((talk) => {
    const open = node("button", [talk.title], { type: "button", class: "open", title: talk.title });
    open.addEventListener("click", () => { current = talk; $("system").value = talk.system ?? ""; show(); closeSide(); });
    const away = node("button", ["✕"], { type: "button", class: "remove", "aria-label": `Delete ${talk.title}` });
    away.addEventListener("click", () => remove(talk));
    return node("div", [open, away], talk === current ? { class: "talk", "aria-current": "true" } : { class: "talk" });
  }));
  $("stop").hidden = !running;
  $("send").hidden = Boolean(running);
  $("send").disabled = !$("input").value.trim();
}

function grow() {
  const box = $("input");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
  $("send").disabled = !box.value.trim();
}

function openSettings(open) {
  $("settings").hidden = !open;
  $("settings-open").setAttribute("aria-expanded", String(open));
}

function closeSide() {
  $("side").classList.remove("shown");
  $("menu").setAttribute("aria-expanded", "false");
}

function theme() {
  if (options.theme) document.documentElement.dataset.theme = options.theme;
  else delete document.documentElement.dataset.theme;
  $("theme").textContent = `Theme: ${options.theme ?? "system"}`;
}

// ---- wiring -----------------------------------------------------------------------------------------------------

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("input").value;
  if (running || !text.trim()) return;
  $("input").value = "";
  grow();
  send(text);
});
$("input").addEventListener("input", grow);
$("input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("form").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    if (running) stop();
    else { openSettings(false); closeSide(); }
  } else if (event.key.toLowerCase() === "o" && event.ctrlKey && event.shiftKey) {
    event.preventDefault();
    begin();
  } else if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "")) {
    event.preventDefault();
    $("input").focus();
  }
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", begin);
$("menu").addEventListener("click", () => {
  const shown = $("side").classList.toggle("shown");
  $("menu").setAttribute("aria-expanded", String(shown));
});
$("log").addEventListener("click", closeSide);
$("settings-open").addEventListener("click", () => openSettings($("settings").hidden));
$("settings-close").addEventListener("click", () => openSettings(false));
$("theme").addEventListener("click", () => {
  options.theme = { undefined: "light", light: "dark", dark: undefined }[options.theme];
  theme();
  save();
});
$("model").addEventListener("change", () => { options.model = $("model").value; save(); });
$("system").addEventListener("input", () => { if (current) { current.system = $("system").value; save(); } });
for (const name of FIELDS) {
  const box = $(name);
  if (options[name] !== undefined) box.value = options[name];
  box.addEventListener("input", () => {
    if (box.value === "" || !box.checkValidity()) delete options[name];
    else options[name] = Number(box.value);
    save();
  });
}
$("key").value = options.key ?? "";
$("key").addEventListener("change", () => { options.key = $("key").value || undefined; save(); findModels(); });
$("export").addEventListener("click", () => {
  const url = URL.createObjectURL(new Blob([JSON.stringify(talks, null, 1)], { type: "application/json" }));
  node("a", [], { href: url, download: "conversations.json" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
});
$("clear").addEventListener("click", () => {
  if (!confirm("Delete all conversations in this browser?")) return;
  stop();
  talks = [];
  current = null;
  save();
  show();
});

theme();
show();
findModels();
