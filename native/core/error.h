/* Filling an el_error. */
#ifndef EL_ERROR_H
#define EL_ERROR_H

#include "edgellm.h"

/* Write code and message into err (NULL is allowed; a longer message is cut) and return code. */
int32_t el_fail(el_error *err, int32_t code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The name of an op code or a weight type for messages; "?" when unknown. */
const char *el_op_name(int32_t code);
const char *el_qtype_name(int32_t qtype);

#endif
