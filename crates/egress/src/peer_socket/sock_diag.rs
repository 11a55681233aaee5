//! A query of `NETLINK_SOCK_DIAG` for one TCP socket (`linux/inet_diag.h`). The kernel replies before `send` returns, so
//! the query never blocks.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
const INET_DIAG_TOS: u16 = 5;
const INET_DIAG_TCLASS: u16 = 6;

/// Size of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// Size of `struct inet_diag_msg`, which follows the header of a reply.
const MESSAGE_BYTES: usize = 72;
/// Size of a header and `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = HEADER_BYTES + 56;

const SEQUENCE: u32 = 1;

/// The report of the kernel about a socket.
#[derive(Debug)]
pub(super) struct SocketInfo {
    pub(super) uid: u32,
    pub(super) inode: u32,
    pub(super) tos: Option<u8>,
    pub(super) tclass: Option<u8>,
}

/// Looks up the socket with these addresses. Both addresses must be of the same family.
pub(super) fn query(own: SocketAddr, remote: SocketAddr) -> io::Result<SocketInfo> {
    let request = encode_request(own, remote).ok_or(ErrorKind::InvalidInput)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::SOCK_DIAG))?;
    send(&socket, &request, SendFlags::NOSIGNAL)?;
    let mut reply = [0; 1024];
    let (length, _) = recv(&socket, &mut reply, RecvFlags::DONTWAIT)?;
    parse_reply(reply.get(..length).unwrap_or_default(), own, remote)
}

fn encode_request(own: SocketAddr, remote: SocketAddr) -> Option<[u8; REQUEST_BYTES]> {
    let family = match (own.ip(), remote.ip()) {
        (IpAddr::V4(_), IpAddr::V4(_)) => AF_INET,
        (IpAddr::V6(_), IpAddr::V6(_)) => AF_INET6,
        _ => return None,
    };
    let extensions = (1 << (INET_DIAG_TOS - 1)) | (1 << (INET_DIAG_TCLASS - 1));
    let mut bytes = Vec::with_capacity(REQUEST_BYTES);
    bytes.extend(u32::try_from(REQUEST_BYTES).ok()?.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend(SEQUENCE.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend([family, IPPROTO_TCP, extensions, 0]);
    // All states of a TCP connection.
    bytes.extend(u32::MAX.to_ne_bytes());
    bytes.extend(own.port().to_be_bytes());
    bytes.extend(remote.port().to_be_bytes());
    bytes.extend(octets(own.ip()));
    bytes.extend(octets(remote.ip()));
    bytes.extend([0; 4]);
    // INET_DIAG_NOCOOKIE: any socket with these addresses.
    bytes.extend([0xff; 8]);
    bytes.try_into().ok()
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            octets
        }
        IpAddr::V6(address) => address.octets(),
    }
}

fn parse_reply(reply: &[u8], own: SocketAddr, remote: SocketAddr) -> io::Result<SocketInfo> {
    let malformed = || io::Error::new(ErrorKind::InvalidData, "malformed reply of sock_diag");
    let number = |at: usize| field(reply, at).map(u32::from_ne_bytes).ok_or_else(malformed);
    let kind = field(reply, 4).map(u16::from_ne_bytes).ok_or_else(malformed)?;
    if kind == NLMSG_ERROR {
        let code = field(reply, HEADER_BYTES).map(i32::from_ne_bytes).ok_or_else(malformed)?;
        return Err(io::Error::from_raw_os_error(code.saturating_neg()));
    }
    if kind != SOCK_DIAG_BY_FAMILY || number(8)? != SEQUENCE || reply.len() < HEADER_BYTES + MESSAGE_BYTES {
        return Err(malformed());
    }
    // If no connection has these addresses, the kernel may report a listener on the port instead.
    let id = HEADER_BYTES + 4;
    let family = reply[HEADER_BYTES];
    let reported = |port: usize, address: usize| {
        let port = u16::from_be_bytes(field(reply, port)?);
        Some(SocketAddr::new(read_address(family, field(reply, address)?)?, port))
    };
    if reported(id, id + 4) != Some(own) || reported(id + 2, id + 20) != Some(remote) {
        return Err(io::Error::new(ErrorKind::NotFound, "no socket has these addresses"));
    }
    let attributes = &reply[HEADER_BYTES + MESSAGE_BYTES..];
    Ok(SocketInfo {
        uid: number(HEADER_BYTES + 64)?,
        inode: number(HEADER_BYTES + 68)?,
        tos: attribute(attributes, INET_DIAG_TOS),
        tclass: attribute(attributes, INET_DIAG_TCLASS),
    })
}

/// Returns the `N` bytes at an offset.
fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn read_address(family: u8, octets: [u8; 16]) -> Option<IpAddr> {
    match family {
        AF_INET => Some(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into()),
        AF_INET6 => Some(IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()),
        _ => None,
    }
}

/// Returns the value of a one-byte attribute.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<u8> {
    loop {
        let length = usize::from(u16::from_ne_bytes(field(attributes, 0)?));
        let kind = u16::from_ne_bytes(field(attributes, 2)?);
        if kind == wanted && length > 4 {
            return attributes.get(4).copied();
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}
