//! Classification of IP addresses: public, private, cloud metadata or unusable.
//!
//! An IPv6 address that embeds an IPv4 address is classified by the IPv4 address, so that no notation hides where a
//! connection goes. Only ranges that are known to be public count as public.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The class of an IP address, which decides whether a rule may allow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressClass {
    /// An address of the internet. Every rule for the host allows it.
    Public,
    /// An address of this host, of its networks, or of a range that is not routed. Only rules with `+private` allow it.
    Private,
    /// An address of a cloud metadata service, which gives credentials to every client on the machine. Only a rule for
    /// the address itself allows it.
    Metadata,
    /// A multicast, unspecified, reserved or tunnelled address. No rule allows it.
    Unusable,
}

impl AddressClass {
    /// Classifies an address.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => embedded_v4(address).map_or_else(|| Self::of_v6(address), Self::of_v4),
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        match address.octets() {
            // EC2, GCP, Azure, OpenStack; ECS and EKS credentials.
            [169, 254, 169 | 170, _]
            // Tencent, Scaleway.
            | [169, 254, 0, 23] | [169, 254, 42, 42]
            // Alibaba, Oracle, Azure wire server.
            | [100, 100, 100, 200] | [192, 0, 0, 192] | [168, 63, 129, 16] => Self::Metadata,
            // Linux connects 0.0.0.0 to loopback.
            [0 | 224..=255, ..] => Self::Unusable,
            [10 | 127, ..]
            | [100, 64..=127, ..]
            | [169, 254, ..]
            | [172, 16..=31, ..]
            | [192, 168, ..]
            | [192, 0, 0 | 2, _]
            | [192, 88, 99, _]
            | [198, 18 | 19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _] => Self::Private,
            _ => Self::Public,
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        match address.segments() {
            // EC2 and EKS, GCP, Scaleway, OpenStack.
            [0xfd00, 0x0ec2, ..]
            | [0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254]
            | [0xfd00, 0x0042, 0, 0, 0, 0, 0, 0x0042]
            | [0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe] => Self::Metadata,
            [0, 0, 0, 0, 0, 0, 0, 1]
            | [0xfc00..=0xfdff | 0xfe80..=0xfeff, ..]
            | [0x2001, 0x0db8, ..]
            | [0x3fff, 0..=0x0fff, ..] => Self::Private,
            // Teredo and other protocol assignments.
            [0x2001, 0..=0x01ff, ..] => Self::Unusable,
            [0x2000..=0x3fff, ..] => Self::Public,
            _ => Self::Unusable,
        }
    }
}

/// Returns the IPv4 address inside an IPv4-mapped, IPv4-compatible, NAT64 or 6to4 address.
pub(super) fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let (high, low) = match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => return None,
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x0064, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            (high, low)
        }
        _ => return None,
    };
    Some(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_class(class: AddressClass, addresses: &[&str]) {
        for text in addresses {
            assert_eq!(AddressClass::of(text.parse().unwrap()), class, "{text}");
        }
    }

    #[test]
    fn metadata_addresses_are_recognized_in_every_notation() {
        assert_class(
            AddressClass::Metadata,
            &[
                "169.254.169.254",
                "169.254.170.2",
                "169.254.170.23",
                "100.100.100.200",
                "192.0.0.192",
                "168.63.129.16",
                "::ffff:169.254.169.254",
                "::169.254.169.254",
                "64:ff9b::169.254.169.254",
                "2002:a9fe:a9fe::1",
                "fd00:ec2::254",
                "fd20:ce::254",
                "fe80::a9fe:a9fe",
            ],
        );
    }

    #[test]
    fn private_and_local_addresses_are_private() {
        assert_class(
            AddressClass::Private,
            &[
                "10.0.0.1",
                "127.0.0.1",
                "127.255.255.254",
                "100.64.0.1",
                "169.254.1.1",
                "172.16.0.1",
                "172.31.255.255",
                "192.168.0.1",
                "198.18.0.1",
                "::1",
                "fc00::1",
                "fdff::1",
                "fe80::1",
                "fec0::1",
                "::ffff:127.0.0.1",
                "64:ff9b::10.0.0.1",
                "2002:c0a8:1::",
                "2001:db8::1",
            ],
        );
    }

    #[test]
    fn special_purpose_addresses_are_unusable() {
        assert_class(
            AddressClass::Unusable,
            &[
                "0.0.0.0",
                "0.1.2.3",
                "224.0.0.1",
                "255.255.255.255",
                "::",
                "::ffff:0.0.0.0",
                "::ffff:0:7f00:1",
                "ff02::1",
                "2001::1",
                "64:ff9b:1::1",
                "100::1",
            ],
        );
    }

    #[test]
    fn internet_addresses_are_public() {
        assert_class(
            AddressClass::Public,
            &[
                "1.1.1.1",
                "172.15.0.1",
                "172.32.0.1",
                "100.63.0.1",
                "100.128.0.1",
                "192.0.1.1",
                "2606:4700::1111",
                "64:ff9b::1.1.1.1",
                "::ffff:8.8.8.8",
            ],
        );
    }
}
