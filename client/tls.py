"""TLS: options to a context, and what a failed handshake means in one line.

Java's client (remoting/netty/TlsHelper.java) trusts everybody unless told otherwise, and never compares host names. Here a
server is checked unless told otherwise, as anything else protects from listeners only. Host names are compared when asked
for, because certificates of brokers are seldom made out to the addresses that routes name; and always when no file says who
is trusted, as then every public certificate would do, whoever owns it.
"""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

from ..remoting.errors import UsageError
from .access import TlsOptions
from .key_files import check_regular

HANDSHAKE_HINT = "during the TLS handshake: is TLS on there?"
_HINTS = (
    ("CERTIFICATE_REQUIRED", "the server wants a client certificate: give security.tls_cert_path and tls_key_path"),
    ("ALERT_UNKNOWN_CA", "the server does not trust our client certificate (security.tls_cert_path)"),
    ("ALERT_BAD_CERTIFICATE", "the server refuses our client certificate, or wants one (security.tls_cert_path)"),
    ("ALERT_CERTIFICATE_UNKNOWN", "the server refuses our client certificate (security.tls_cert_path)"),
    (
        "ALERT_HANDSHAKE_FAILURE",
        "the server found nothing in common: versions and ciphers, or it wants a client certificate",
    ),
    ("WRONG_VERSION_NUMBER", "the server does not answer in TLS: is it on there, and is this the right port?"),
    ("UNEXPECTED_EOF", "the server ended the handshake: is TLS on there, and does it want a client certificate?"),
)
NO_ANSWER_HINT = (
    "closed by the peer before it answered anything: does it want a client certificate (security.tls_cert_path), or is"
    " nothing behind it?"
)
NO_TLS_HINT = (
    "closed by the peer before it answered anything: if it wants TLS, set security.tls_enable; or nothing is behind it"
)


def client_context(options: TlsOptions) -> ssl.SSLContext:
    """A context for all connections. Raises UsageError for files that are missing, no PEM, or do not fit together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = compares_names(options)
    if not options.auth_server:
        context.verify_mode = ssl.CERT_NONE
    elif options.trust_cert_path:
        try:
            check_regular(options.trust_cert_path)
            context.load_verify_locations(options.trust_cert_path)
        except OSError as error:
            raise UsageError(f"security.tls_trust_cert_path {options.trust_cert_path}: {_file_error(error)}") from None
    else:
        context.load_default_certs()
    if options.cert_path:
        try:
            check_regular(options.cert_path, options.key_path)
            # Without a function the password would be asked for on the terminal.
            context.load_cert_chain(options.cert_path, options.key_path or None, lambda: options.key_password)
        except OSError as error:
            files = options.cert_path + (f" with security.tls_key_path {options.key_path}" if options.key_path else "")
            wrong = _file_error(error)
            if isinstance(error, ssl.SSLError) and _is_locked(options.key_path or options.cert_path):
                wrong = "the key cannot be decrypted: is security.tls_key_password right?"
            raise UsageError(f"security.tls_cert_path {files}: {wrong}") from None
    return context


def server_context(cert_path: str, key_path: str) -> ssl.SSLContext:
    """A context for a server with this certificate and key, PEM files; `key_path` empty: the key stands in the same file.

    Raises UsageError for files that are missing, no PEM, encrypted, or do not fit together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION  # a peer could ask for that work again and again
    try:
        check_regular(cert_path, key_path)
        context.load_cert_chain(cert_path, key_path or None, lambda: "")
    except OSError as error:
        files = cert_path + (f" with broker.tls_key_path {key_path}" if key_path else "")
        wrong = _file_error(error)
        if isinstance(error, ssl.SSLError) and _is_locked(key_path or cert_path):
            wrong = "the key is encrypted: give one without a password"
        raise UsageError(f"broker.tls_cert_path {files}: {wrong}") from None
    return context


def compares_names(options: TlsOptions) -> bool:
    """Whether the certificate must be made out to the name, or the address, that was connected to."""
    return options.auth_server and (options.check_hostname or not options.trust_cert_path)


def server_name(options: TlsOptions, host: str) -> str | None:
    """What to ask for by SNI and to compare the certificate with; None for an address that is compared with nothing."""
    if options.server_name:
        return options.server_name
    if compares_names(options):
        return host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host
    return None


def explain(error: Exception) -> str:
    """What a TLS error means, in one line without its place in OpenSSL's sources."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}{_remedy(error)}"
    text = str(error)
    for mark, hint in _HINTS:
        if mark in text.upper().replace(" ", "_"):
            return hint
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return f"TLS failed: {reason or text}"


def _remedy(error: ssl.SSLCertVerificationError) -> str:
    if "mismatch" in error.verify_message or "not valid for" in error.verify_message:
        return " (security.tls_server_name says which name to expect)"
    if "expired" in error.verify_message or "not yet valid" in error.verify_message:
        return ""
    return " (security.tls_trust_cert_path names who is trusted; tls_auth_server = false trusts everybody)"


def _is_locked(path: str) -> bool:
    """Whether a PEM file holds an encrypted key; OpenSSL says the same of a wrong password and of a file that is no PEM."""
    with Path(path).open("rb") as file:
        return b"ENCRYPTED" in file.read(64 * 1024)


def _file_error(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        text = str(error).upper().replace(" ", "_")
        if "KEY_VALUES_MISMATCH" in text:
            return "the key does not belong to the certificate"
        return "is no usable PEM file"
    return f"cannot be read: {error.strerror}"
