# The bash kernel of a session: an interactive shell without a terminal, whose input is the control channel.
#
#   bash -c 'exec bash --noprofile --rcfile kernel.sh --noediting -i <&3 3<&- 252>&2 2<>/dev/null'
#
# The host sends a line `ID LENGTH` and LENGTH bytes of code; the kernel answers `ready VERSION` once, then `ID STATUS`
# for each. End of file ends it.
#
# Interactive, because that is the one kind of shell that survives an interrupt, `set -u` and ${x:?} and drops just
# the rest of the code. It never comes to read at its prompt: the code runs before that, where bash takes itself for a
# script and says nothing of terminals and jobs. Input and output of the shell itself are not those of the code: what
# the code does to its own ends with it, and what the kernel does is not traced to it.
#
# An `exec` that succeeds, and `builtin exit`, end the kernel. A trap of INT or DEBUG lasts for one request. Where an
# error of expansion strikes in the text of an `eval` or of a sourced file, just the command that has it is dropped.
# `set -e` holds in a function that is called with `!` before it. A trap of EXIT is for the end of the shell, not of the
# code; in posix mode `exit` ends the shell.

# Answers the last request and takes the next.
__rf_turn() {
  local __rf_length - # `-`: the options that the code has set do not hold in here
  set +efuvx
  builtin trap '' INT
  [[ -z $__rf_id ]] || builtin printf '%s %s\n' "$__rf_id" "$__rf_status" >&0
  __rf_last=$__rf_status __rf_status=130 # what says nothing of its status was interrupted
  TMOUT=0 IFS=' ' builtin read -r __rf_id __rf_length || builtin exit
  TMOUT=0 IFS= LC_ALL=C builtin read -r -N "$__rf_length" __rf_code || builtin exit
  # As one command, for an error of expansion drops just a command. What is none, or not before its first lines have
  # run (extglob), is read as bash reads a script; so is what is long, for bash calls itself once for each command of
  # a list. Nothing but `esac` and `}` could leave the trial too early.
  __rf_run="{ $__rf_code"$'\n}'
  ((__rf_length <= 32768)) && eval "__rf_trial() { case . in (.) $__rf_run;; esac; }" 2>/dev/null ||
    { __rf_run='eval "$__rf_code"'; eval :; } # or bash would take the end of the trial for the end of the rest
  unset -f __rf_trial
  __rf_run="__rf_begin; $__rf_run <&250 >&251 2>&252"
  builtin trap - INT
}

# The last thing before the code, which sees the status of the code before it.
__rf_begin() {
  set -E
  __rf_trap_errors "$__rf_on_error"
  return "$__rf_last"
}

# `set -e` for the code: bash runs a trap of ERR where, and only where, it would leave the shell next.
__rf_trap_errors() {
  __rf_on_error=$1
  builtin trap -- "{ __rf_failed; } &>/dev/null${1:+ || { $1
\}}
{ __rf_leave; } &>/dev/null" ERR
}

# The trap that the code has set is not for its subshells.
__rf_failed() {
  __rf_failure=$?
  (($$ != BASHPID)) || return "$__rf_failure"
}

__rf_leave() {
  [[ $- != *e* ]] || exit "$__rf_failure"
}

# Leaves the code, not the shell: an interrupt is what unwinds every eval, file, trap and redirection.
exit() {
  { local - __rf_before=$?; set +ex; } 2>/dev/null
  set -- "${@:-$__rf_before}"
  (($$ == BASHPID)) || builtin exit "$@"
  __rf_status=0
  if [[ $* =~ ^[0-9]{1,9}$ ]]; then __rf_status=$((10#$1 & 255)); else (builtin exit "$@") || __rf_status=$?; fi
  __rf_unwind
}

__rf_unwind() {
  builtin trap - INT
  builtin kill -INT $$
  while :; do :; done # until it strikes, which it does not always at once
}

# Bash has come to its prompt after all: some errors of syntax make it forget what it was about to do.
__rf_lost() {
  builtin echo 'bash: syntax error: the code is not read to its end' >&252
  builtin kill -INT $$
}

# A trap of ERR is set beside the kernel's.
trap() {
  { local - IFS=' ' __rf_action=${1-} __rf_names=" ${*:2} " __rf_name; set +x; } 2>/dev/null
  [[ $__rf_action != -- ]] || __rf_action=${2-} __rf_names=" ${*:3} "
  (($# != 1)) || __rf_action=- __rf_names=" $1 "
  if [[ ${__rf_names^^} == *' ERR '* && $__rf_action != -p ]]; then
    builtin trap "$@" || return
    [[ $__rf_action != - ]] || __rf_action=
    __rf_trap_errors "$__rf_action"
  elif [[ $__rf_action == - && $# != 1 ]]; then
    builtin trap "$@"
    # bash sets those again at the end of a function that has just reset them.
    for __rf_name in DEBUG RETURN; do
      [[ ${__rf_names^^} != *" $__rf_name "* ]] || builtin trap '' "$__rf_name"
    done
  else
    builtin trap "$@"
  fi
}

# The code's input and output are kept where it does not come across them, and closed for other programs. So is what
# bash puts aside for the time of a redirection, on the next number that is free, and so are copies of that.
exec 240<>/dev/null
{ exec 250<&242 251>&241; } >&240 2>&240
exec >&252
{ exec 252>&241; } >&240
exec >&2 240>&-

set +o history +H
shopt -s execfail
unset HISTFILE
PS1='$(__rf_lost)' PS2=$PS1
__rf_id= __rf_status=0 __rf_on_error=
# A file that is sourced is where bash takes note of jobs that have ended, without a prompt; code that asks for its own
# place has none. To the left of `||` bash itself does not heed `set -e` in either.
readonly __rf_cell=${BASH_SOURCE[0]%/*}/cell.sh PROMPT_COMMAND='__rf_turn
if [[ $__rf_code == *BASH_SOURCE* ]]; then \eval "$__rf_run"; else . "$__rf_cell"; fi && __rf_status=0 || __rf_status=$?
__rf_unwind'
printf 'ready %s\n' "$BASH_VERSION" >&0
