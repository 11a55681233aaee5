# The bash kernel of a session: an interactive shell without a terminal, whose input is the control channel.
#
#   bash -c 'exec bash --noprofile --rcfile kernel.sh --noediting -i <&3 251>&2 2>/dev/null'
#
# The host sends, on descriptor 3, a line `ID LENGTH`, LENGTH bytes of code, and the line that runs it; the kernel
# answers `ready VERSION` once, then `ID STATUS` for each. End of file ends it.
#
# Interactive, because that is the one kind of shell that survives an interrupt, `set -u` and ${x:?} and drops just
# the rest of the code. `set -e`, `exec` and signals that end a shell end the kernel. A trap of INT lasts for one
# request. bash may complain of tcsetattr, for want of a terminal, when a signal has ended a command.

# Before each line of input: answers the last request and takes the next.
__rf_turn() {
  local status=$? length - # `-`: the options that the code has set do not hold in here
  trap '' INT
  set +efux
  [[ -z ${__rf_status-} ]] || { status=$__rf_status; unset __rf_status; exec 2>&251 251>&-; }
  [[ -z ${__rf_id-} ]] || builtin printf '%s %s\n' "$__rf_id" "$status" >&250
  PS1= PS2=
  TMOUT=0 IFS=' ' builtin read -r -u 250 __rf_id length || builtin exit
  TMOUT=0 IFS= LC_ALL=C builtin read -r -N "$length" -u 250 __rf_code || builtin exit
  trap - INT
}

# Leaves the code, not the shell: an error of expansion does that, once nobody hears it.
exit() {
  set -- "${1:-$?}"
  ((BASH_SUBSHELL == 0)) || builtin exit "$1"
  __rf_status=$(($1 & 255))
  exec 251>&2 2>/dev/null
  : "${__rf_never_set?}"
}

exec 250<&0 3<&- 2>&251 251>&-
set +o history +H
unset HISTFILE
readonly PROMPT_COMMAND=__rf_turn
PS1= PS2=
printf 'ready %s\n' "$BASH_VERSION" >&250
