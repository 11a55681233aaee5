//! Measures what the egress of a sandbox costs: idle memory, start-up time and throughput of a tunnel.
//!
//!     cargo run --release -p ringfence-egress --example egress_cost

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::cast_precision_loss)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use ringfence_core::EgressSockets;
use ringfence_egress::{DecisionLog, Egress, EgressSettings, Policy};

const SANDBOXES: usize = 100;
const TRANSFER_BYTES: usize = 1 << 30;
const ROUNDS: usize = 7;
const LINK_BYTES_PER_SECOND: f64 = 1.25e9;
const UNLIMITED: &[u8; 6] = b"EHLO\r\n";
const LIMITED: &[u8; 6] = b"SLOW\r\n";
const LOOPBACK: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 0);

fn sockets() -> EgressSockets {
    let listen = || TcpListener::bind(LOOPBACK).unwrap();
    EgressSockets {
        resolver: UdpSocket::bind(LOOPBACK).unwrap(),
        resolver_tcp: listen(),
        proxy: listen(),
        mirror: listen(),
        transparent: vec![listen(), listen()],
    }
}

fn settings(rule: &str) -> EgressSettings {
    EgressSettings::new(Policy::parse([rule]).unwrap(), DecisionLog::bounded(64).0)
}

/// Returns the anonymous memory of this process.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let _entered = runtime.enter();
    measure_idle();
    measure_throughput();
}

fn measure_idle() {
    let _warm_up = Egress::start(sockets(), settings("example.com")).unwrap();
    let prepared: Vec<_> = (0..SANDBOXES).map(|_| (sockets(), settings("example.com"))).collect();
    let before = resident_kib();
    let mut times: Vec<Duration> = Vec::with_capacity(SANDBOXES);
    let mut running = Vec::with_capacity(SANDBOXES);
    for (sockets, settings) in prepared {
        let started = Instant::now();
        running.push(Egress::start(sockets, settings).unwrap());
        times.push(started.elapsed());
    }
    // The tasks have run once and wait.
    thread::sleep(Duration::from_millis(200));
    let used = resident_kib() - before;
    times.sort_unstable();
    println!("start: median {:?}, p95 {:?}", times[SANDBOXES / 2], times[SANDBOXES * 95 / 100]);
    println!("idle memory: {:.1} KiB per sandbox", used as f64 / SANDBOXES as f64);
}

fn measure_throughput() {
    let listener = TcpListener::bind(LOOPBACK).unwrap();
    let server = listener.local_addr().unwrap();
    thread::spawn(move || {
        let block = vec![7; 256 * 1024];
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 6];
            stream.read_exact(&mut request).unwrap();
            let started = Instant::now();
            for sent in 0..TRANSFER_BYTES / block.len() {
                if &request == LIMITED {
                    let due = Duration::from_secs_f64((sent * block.len()) as f64 / LINK_BYTES_PER_SECOND);
                    thread::sleep(due.saturating_sub(started.elapsed()));
                }
                stream.write_all(&block).unwrap();
            }
        }
    });
    let sockets = sockets();
    let proxy = sockets.proxy.local_addr().unwrap();
    let _egress = Egress::start(sockets, settings(&server.to_string())).unwrap();
    for (name, request) in [("unlimited", UNLIMITED), ("link of 10 Gbit/s", LIMITED)] {
        let (mut direct, mut tunnelled) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            direct.push(receive(TcpStream::connect(server).unwrap(), request));
            let mut stream = TcpStream::connect(proxy).unwrap();
            write!(stream, "CONNECT {server} HTTP/1.1\r\n\r\n").unwrap();
            let mut response = [0; 39];
            stream.read_exact(&mut response).unwrap();
            tunnelled.push(receive(stream, request));
        }
        let median = |times: &mut Vec<f64>| {
            times.sort_unstable_by(f64::total_cmp);
            times[ROUNDS / 2]
        };
        let (direct, tunnelled) = (median(&mut direct), median(&mut tunnelled));
        let ratio = tunnelled / direct;
        println!("throughput, {name}: direct {direct:.2} GB/s, tunnel {tunnelled:.2} GB/s, ratio {ratio:.2}");
    }
}

/// Receives everything; returns the throughput in GB/s.
fn receive(mut stream: TcpStream, request: &[u8]) -> f64 {
    let mut buffer = vec![0; 256 * 1024];
    let started = Instant::now();
    stream.write_all(request).unwrap();
    let mut total = 0;
    while total < TRANSFER_BYTES {
        match stream.read(&mut buffer).unwrap() {
            0 => break,
            count => total += count,
        }
    }
    assert_eq!(total, TRANSFER_BYTES);
    total as f64 / started.elapsed().as_secs_f64() / 1e9
}
