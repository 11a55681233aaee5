"""Case 21: the keyrings of the kernel, which namespaces hardly separate.

Attempted: add_key, request_key, and three uses of keyctl: the process keyring, a new session keyring, and the keyring
of the user, which all processes with the same uid share.
Contained: each call is refused.
Harmless: the key is in the process keyring of a child and ends with it.
"""

import errno
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import attempt

PROCESS_KEYRING, USER_KEYRING = -2, -4
GET_KEYRING_ID, JOIN_SESSION_KEYRING = 0, 1


def main():
    attempt.arguments(__doc__)
    call = attempt.syscall
    attempts = {
        "add_key": lambda: call("add_key", b"user", b"escape-probe", b"x", 1, PROCESS_KEYRING),
        "request_key": lambda: call("request_key", b"user", b"escape-probe-none", 0, 0),
        "keyctl on the process keyring": lambda: call("keyctl", GET_KEYRING_ID, PROCESS_KEYRING, 1),
        "keyctl on the user's keyring": lambda: call("keyctl", GET_KEYRING_ID, USER_KEYRING, 1),
        "keyctl for a new session keyring": lambda: call("keyctl", JOIN_SESSION_KEYRING, 0),
    }
    for name, attack in attempts.items():
        attempt.probe(name, attack, absent={errno.ENOSYS: "this kernel has no key management"})


main()
