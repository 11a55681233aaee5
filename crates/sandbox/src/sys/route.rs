//! Local addresses of this network namespace (`rtnetlink(7)`).

use std::net::Ipv4Addr;

use rustix::io::{Errno, Result};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

const NLMSG_ERROR: u16 = 2;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
/// `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_CREATE`, `NLM_F_EXCL`.
const FLAGS: u16 = 0x1 | 0x4 | 0x400 | 0x200;
const HEADER_BYTES: usize = 16;

const AF_INET: u8 = 2;
const RT_TABLE_LOCAL: u8 = 255;
const RTPROT_BOOT: u8 = 3;
const RT_SCOPE_HOST: u8 = 254;
const RTN_LOCAL: u8 = 2;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const IFA_LOCAL: u16 = 2;
/// The loopback interface is the first one of every network namespace.
const LOOPBACK_INDEX: u32 = 1;

/// Makes all addresses of a network local, and gives one of them to the loopback interface, as `ip route add local
/// NETWORK dev lo` and `ip address add ADDRESS/32 dev lo scope host` do. The interface must be up.
///
/// Programs that look up IPv4 addresses with `AI_ADDRCONFIG` find none if the only interface has no other address than
/// 127.0.0.1 (getaddrinfo(3)).
pub(crate) fn add_local_network(network: Ipv4Addr, prefix_length: u8, address: Ipv4Addr) -> Result<()> {
    // Protocol 0 is `NETLINK_ROUTE`.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let requests = [new_route(network, prefix_length), new_address(address)];
    send(&socket, &requests.concat(), SendFlags::empty())?;
    for _ in requests {
        let mut reply = [0; 512];
        let (length, _) = recv(&socket, &mut reply, RecvFlags::empty())?;
        acknowledged(&reply[..length])?;
    }
    Ok(())
}

fn new_route(network: Ipv4Addr, prefix_length: u8) -> Vec<u8> {
    let route = [AF_INET, prefix_length, 0, 0, RT_TABLE_LOCAL, RTPROT_BOOT, RT_SCOPE_HOST, RTN_LOCAL, 0, 0, 0, 0];
    let attributes = [attribute(RTA_DST, network.octets()), attribute(RTA_OIF, LOOPBACK_INDEX.to_ne_bytes())];
    message(RTM_NEWROUTE, &[&route[..], &attributes.concat()].concat())
}

fn new_address(address: Ipv4Addr) -> Vec<u8> {
    let properties = [[AF_INET, 32, 0, RT_SCOPE_HOST], LOOPBACK_INDEX.to_ne_bytes()].concat();
    message(RTM_NEWADDR, &[&properties[..], &attribute(IFA_LOCAL, address.octets())].concat())
}

fn attribute(kind: u16, value: [u8; 4]) -> [u8; 8] {
    let [length, kind] = [8_u16, kind].map(u16::to_ne_bytes);
    [length[0], length[1], kind[0], kind[1], value[0], value[1], value[2], value[3]]
}

fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + body.len()).unwrap_or(u32::MAX);
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(kind.to_ne_bytes());
    message.extend(FLAGS.to_ne_bytes());
    // The sequence number and the sender, which only an asynchronous reader needs.
    message.extend([0; 8]);
    message.extend(body);
    message
}

/// Checks that a reply is an acknowledgement: an error message with the number 0.
fn acknowledged(reply: &[u8]) -> Result<()> {
    let kind = reply.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    let error = reply.get(HEADER_BYTES..HEADER_BYTES + 4).and_then(|bytes| bytes.try_into().ok());
    match (kind, error.map(i32::from_ne_bytes)) {
        (Some(NLMSG_ERROR), Some(0)) => Ok(()),
        (Some(NLMSG_ERROR), Some(error @ -4095..0)) => Err(Errno::from_raw_os_error(-error)),
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn requests_have_the_wire_format_of_rtnetlink() {
        let header = |length: u8, kind: u8| [length, 0, 0, 0, kind, 0, 5, 6, 0, 0, 0, 0, 0, 0, 0, 0];
        let route = [2, 15, 0, 0, 255, 3, 254, 2, 0, 0, 0, 0];
        let destination = [8, 0, 1, 0, 198, 18, 0, 0];
        let interface = [8, 0, 4, 0, 1, 0, 0, 0];
        let expected = [&header(44, 24)[..], &route, &destination, &interface].concat();
        assert_eq!(new_route(Ipv4Addr::new(198, 18, 0, 0), 15), expected);
        let expected = [&header(32, 20)[..], &[2, 32, 0, 254, 1, 0, 0, 0], &[8, 0, 2, 0, 198, 18, 0, 1]].concat();
        assert_eq!(new_address(Ipv4Addr::new(198, 18, 0, 1)), expected);
    }

    #[test]
    fn only_an_acknowledgement_is_success() {
        let reply = |kind: u16, error: i32| {
            let [length, sequence] = [36_u32, 0].map(u32::to_ne_bytes);
            let kind = [kind.to_ne_bytes(), [0; 2]].concat();
            [&length[..], &kind, &sequence, &sequence, &error.to_ne_bytes()].concat()
        };
        assert_eq!(acknowledged(&reply(NLMSG_ERROR, 0)), Ok(()));
        assert_eq!(acknowledged(&reply(NLMSG_ERROR, -17)), Err(Errno::EXIST));
        for invalid in [reply(NLMSG_ERROR, 17), reply(NLMSG_ERROR, i32::MIN), reply(3, 0), Vec::new()] {
            assert_eq!(acknowledged(&invalid), Err(Errno::PROTO), "{invalid:?}");
        }
        assert_eq!(acknowledged(&reply(NLMSG_ERROR, 0)[..18]), Err(Errno::PROTO));
    }
}
