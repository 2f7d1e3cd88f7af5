//! Ports for the servers of a test, which stay free while a server is down.
//!
//! A port that the system gives away by itself is not safe: while a member is down, a connection to anywhere, and of all
//! those the one that asks whether the member is back, may be given the member's own port to leave from. So ports are
//! taken from below those that the system gives away, in blocks. A process holds a block for as long as it lives by a
//! UDP socket on the block's first number, which no server under test wants.

use std::net::{TcpListener, UdpSocket};
use std::sync::Mutex;

/// Below are ports that services are known by.
const LOWEST: u16 = 10_240;
/// Where the system's own begin unless it says otherwise.
const SYSTEM: u16 = 32_768;
/// Lower bound and upper bound of the ports that the system gives away.
const SYSTEM_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Ports of a block: what a few clusters need.
const BLOCK: u16 = 64;

/// A block that this process holds and has given the first ports of.
struct Block {
    /// Held, so that no other process takes the block.
    _claim: UdpSocket,
    next: u16,
    end: u16,
}

/// The block that ports are given from, and those used up.
static BLOCKS: Mutex<Vec<Block>> = Mutex::new(Vec::new());

/// Two ports that nobody listens on, and that are given to nobody else while this process lives.
///
/// # Panics
/// When all blocks are held.
pub fn free_ports() -> (u16, u16) {
    let mut blocks = BLOCKS.lock().expect("nobody panics while holding the ports");
    (free_port(&mut blocks), free_port(&mut blocks))
}

fn free_port(blocks: &mut Vec<Block>) -> u16 {
    loop {
        if let Some(block) = blocks.last_mut() {
            while block.next < block.end {
                let port = block.next;
                block.next += 1;
                if TcpListener::bind(("127.0.0.1", port)).is_ok() {
                    return port;
                }
            }
        }
        let first = u16::try_from(std::process::id() % u32::from(u16::MAX)).expect("it is below");
        let end = system_begin();
        let block = claim(end, first);
        blocks.push(
            block.unwrap_or_else(|| panic!("too many tests run side by side: no port is left from {LOWEST} to {end}")),
        );
    }
}

/// The lowest port that the system gives away, or the usual one if there is hardly any room below.
fn system_begin() -> u16 {
    let range = std::fs::read_to_string(SYSTEM_RANGE).unwrap_or_default();
    let begin = range.split_whitespace().next().and_then(|number| number.parse().ok());
    begin.filter(|begin| *begin >= LOWEST + 16 * BLOCK).unwrap_or(SYSTEM)
}

/// Takes the first block below `end` that nobody holds, beginning at one that depends on `first`.
fn claim(end: u16, first: u16) -> Option<Block> {
    let count = (end - LOWEST) / BLOCK;
    (0..count).find_map(|number| {
        let begin = LOWEST + (first % count + number) % count * BLOCK;
        let claim = UdpSocket::bind(("127.0.0.1", begin)).ok()?;
        Some(Block { _claim: claim, next: begin, end: begin + BLOCK })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ports_are_given_once_and_the_system_gives_none_of_them() {
        let ports: Vec<u16> = (0..BLOCK).flat_map(|_| <[u16; 2]>::from(free_ports())).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), ports.len());
        assert!(ports.iter().all(|port| (LOWEST..system_begin()).contains(port)), "{ports:?}");
    }

    #[test]
    fn a_block_is_held_by_one() {
        let end = LOWEST + 2 * BLOCK;
        // Other processes may hold one of the two, or both.
        let held: Vec<Block> = std::iter::from_fn(|| claim(end, 0)).collect();
        let begins: BTreeSet<u16> = held.iter().map(|block| block.next).collect();
        assert_eq!(begins.len(), held.len());
        assert!(held.len() <= 2 && claim(end, 1).is_none());
        drop(held);
    }
}
