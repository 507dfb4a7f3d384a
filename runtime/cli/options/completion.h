/*
 * completion.h -- completion for bash, zsh and fish, and the options of the manual: written from the tables of commands
 * and options.
 *
 *     aqpipe help completion bash          the whole script, on standard output
 *     aqpiped --completion=bash            the same, of a program without commands
 *     aqpipe launch --completion=bash      the part of one command; every command has this option, and no help shows it
 *     aqpipe help man                      the section OPTIONS of docs/man/aqpipe.1 (--completion=man: of one command)
 *
 * An option is completed because its row is in the table; no list is kept by hand. The name of an option's value
 * decides its completion: DIR a folder, FILE a file, KEY=VALUE a key of the manifest (keys.def).
 *
 * Locking: pure except the stream.
 */
#ifndef RUNTIME_COMPLETION_H
#define RUNTIME_COMPLETION_H

#include <stdint.h>
#include <stdio.h>

#include "commands.h"
#include "options.h"

enum aq_shell { AQ_SHELL_NONE = 0, AQ_SHELL_BASH, AQ_SHELL_ZSH, AQ_SHELL_FISH, AQ_SHELL_MAN };

/* "bash", "zsh", "fish", and "man", which is no shell; AQ_SHELL_NONE: another word. */
enum aq_shell aq_shell_named(const char *name);

/* The script of a program with these commands (help NULL: left out), each of which prints its part by
 * aq_completion_line when it is run with --completion. Answers the exit status. */
int aq_completion_program(FILE *to, const char *shell, const char *program, const struct aq_command *commands,
                          uint32_t count);

/* The part of one command ("aqpipe launch"), or the script of a program without commands ("aqpiped"). AQ_EXIT_USAGE:
 * no such shell, said. */
int aq_completion_line(FILE *to, const char *shell, const struct aq_command_line *line);

#endif
