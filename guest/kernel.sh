# The bash kernel of a session: `bash --norc --noprofile kernel.sh IN OUT` runs requests in one shell.
#
# On IN: a line `ID LENGTH`, then LENGTH bytes of code without NUL. On OUT: `ready VERSION` once, then
# `ID STATUS` for each request. End of IN ends the kernel.
#
# Two processes: bash runs no trap while it waits for a command, so a supervisor passes SIGINT on to
# the process group of the shell and its commands. Much ends a shell: exit, set -e, set -u, ${x:?}, an
# interrupt. Its EXIT trap then reports the status and replaces it by a new one in the same process,
# to which it hands variables, functions, options, aliases, traps and arguments ($@ not if `set -e`
# struck in a function). Background jobs run on, but without job number or $!. `exec COMMAND`,
# `set -n` and SIGKILL end the kernel.

supervise() {
  local shell status
  exec 250<&"$1" 251>&"$2" 252< <(echo 'shopt -s expand_aliases; printf "ready %s\n" "$BASH_VERSION" >&251')
  eval "exec $1<&- $2>&-"
  set -m # a process group for the shell; and SIGINT would be ignored in other background jobs
  __rf_kernel=$(<"$0")
  __rf_run_shell &
  shell=$!
  exec 2>/dev/null # what bash says of its job
  builtin trap relay INT
  until wait "$shell"; status=$?; ! kill -0 "$shell"; do :; done # a signal ends a wait too
  builtin exit "$status"
}

# Traps nest: many signals at once would be the end of the stack.
relay() {
  local again=1
  builtin trap again=1 INT
  while [[ $again ]]; do again=; interrupt; done
  builtin trap relay INT
  [[ -z $again ]] || relay
}

# A shell that is being replaced runs no code and does not catch SIGINT yet: it would die of it. Only
# while it is stopped is it certain that it does not begin to be replaced.
interrupt() {
  local key value state= caught=0
  until [[ $state == [Tt]* ]]; do
    kill -STOP "$shell" || return
    while read -r key value; do
      case $key in State:) state=$value ;; SigCgt:) caught=$value ;; esac
    done <"/proc/$shell/status"
  done
  ((16#$caught & 1 << 1)) && kill -INT -- "-$shell"
  kill -CONT "$shell"
}

# The main loop comes from -c and is one line, so that bash's messages name neither this file nor
# its lines. State arrives on 252.
__rf_run_shell() {
  local loop='eval "$1"; __rf_kernel=$1; shift; builtin trap : INT; source /dev/fd/252; exec 252<&-;'
  loop+=' builtin trap '\''__rf_leave "$@"'\'' EXIT; while { __rf_next; } 2>/dev/null; do'
  loop+=' eval "$__rf_code" </dev/null 250<&- 251>&-; { __rf_reply "$?"; } 2>/dev/null; done'
  exec "$BASH" --norc --noprofile -c "$loop" bash "$__rf_kernel" "$@" </dev/null
}

# The guest's options and IFS hold for its next request, but not in here.
__rf_next() {
  local - id length
  set +efux
  __rf_id=
  TMOUT=0 IFS=' ' builtin read -r -u 250 id length || return
  TMOUT=0 IFS= LC_ALL=C builtin read -r -N "$length" -u 250 __rf_code || return
  __rf_id=$id
  builtin trap '__rf_quit 130 "${__rf_on_int-}"' INT
}

__rf_reply() {
  builtin trap : INT
  builtin printf '%s %s\n' "$__rf_id" "$1" >&251
}

# An error of expansion leaves all functions on its way out; the builtin `exit` would not, and their
# local variables would be taken for global ones.
__rf_quit() {
  builtin trap : INT
  eval "$2"
  __rf_quit_status=$(($1 & 255))
  exec 249>&2 2>/dev/null
  : "${__rf_never_set?}"
}

exit() {
  set -- "${1:-$?}"
  if ((BASH_SUBSHELL)); then builtin exit "$1"; else __rf_quit "$1" ''; fi
}

__rf_leave() {
  { __rf_status=$? __rf_flags=${-//[!efuvx]/}; set +efuvx; } 2>/dev/null
  builtin trap : INT
  builtin trap - EXIT
  [[ -z ${__rf_quit_status-} ]] || { __rf_status=$__rf_quit_status; exec 2>&249 249>&-; }
  [[ -z ${__rf_on_exit-} ]] || (eval "$__rf_on_exit")
  [[ $__rf_id ]] || builtin exit "$__rf_status"
  # The request's redirections are still in place. bash keeps the originals under other numbers; the
  # supervisor's show which they are. They are closed on exec, and so are copies, but for that to 0.
  for __rf_fd in /proc/"$BASHPID"/fd/*; do
    [[ $__rf_fd -ef /proc/$PPID/fd/250 ]] && exec <&"${__rf_fd##*/}" 250<&0
    [[ $__rf_fd -ef /proc/$PPID/fd/251 ]] && exec <&"${__rf_fd##*/}" 251>&0
  done
  __rf_reply "$__rf_status"
  builtin trap '' INT # it would end the processes that hand the state on
  __rf_settings="$(builtin trap -p; set +o); set -${__rf_flags}h"
  exec 252< <(__rf_state)
  builtin trap : INT # a signal that is ignored is so for ever after exec
  __rf_run_shell "$@"
}

__rf_state() {
  shopt -p
  __rf_own='__rf_*|BASH*|DIRSTACK|EPOCH*|EUID|FUNCNAME|GROUPS|LINENO|PIPESTATUS|PPID|RANDOM|SECONDS|SHELLOPTS|SRANDOM|UID|_'
  compgen -v | while read -r __rf_name; do
    [[ $__rf_name == @($__rf_own) ]] || declare -p "$__rf_name"
  done
  declare -f
  declare -Fx
  alias -p
  printf '%s\n' "$__rf_settings"
}

# The guest's EXIT and INT traps run before the kernel's own, which must stay.
trap() {
  local signal others=()
  if ((BASH_SUBSHELL)) || [[ $# -lt 2 || $1 == -[lp]* ]]; then builtin trap "$@"; return; fi
  [[ $1 != -- ]] || shift
  for signal in "${@:2}"; do
    case ${signal^^} in
      EXIT | 0) __rf_on_exit=${1#-} ;;
      INT | SIGINT | 2) __rf_on_int=${1#-} ;;
      *) others+=("$signal") ;;
    esac
  done
  ((${#others[@]} == 0)) || builtin trap -- "$1" "${others[@]}"
}

[[ -z ${BASH_SOURCE-} ]] || supervise "$@"
