//! Captures all packets between the nodes of a network of this machine. Needs root.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::{
    io::Errno,
    net::{AddressFamily, Protocol, RecvFlags, SocketType, recv, socket, sockopt},
};

/// Every protocol, in the network's byte order.
const ALL: u32 = ETH_P_ALL.to_be() as u32;
/// Of linux/if_ether.h.
const ETH_P_ALL: u16 = 3;
/// Bytes of the receive buffer.
const WAITING: usize = 64 << 20;
/// More than this is not kept.
const MOST: usize = 1 << 30;

/// Whether a frame holds a packet of IPv4 from or to an address that begins so: others on this machine are none of our
/// business.
fn is_of(network: [u8; 3], frame: &[u8]) -> bool {
    let at = |place: usize| frame.get(place..place + 3) == Some(&network);
    frame.get(12..14) == Some(&[8, 0]) && (at(26) || at(30))
}

/// Keeps every packet until it is asked for them.
#[derive(Debug)]
pub struct Capture {
    end: Arc<AtomicBool>,
    reading: JoinHandle<Result<Vec<u8>>>,
}

impl Capture {
    /// Begins with the packets of 10.x.y.0/24, say; none where this machine does not let us.
    pub fn start(network: [u8; 3]) -> Result<Option<Self>> {
        let all = Protocol::from_raw(ALL.try_into()?);
        let socket = match socket(AddressFamily::PACKET, SocketType::RAW, Some(all)) {
            Err(Errno::PERM | Errno::ACCESS) => return Ok(None),
            opened => opened?,
        };
        // The kernel takes less where it does not allow that much.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, WAITING);
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(Duration::from_millis(100)))?;
        let end = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&end);
        let reading = std::thread::spawn(move || {
            let (mut seen, mut packet) = (Vec::new(), vec![0_u8; 128 << 10]);
            loop {
                match recv(&socket, packet.as_mut_slice(), RecvFlags::empty()) {
                    Ok((length, _)) => {
                        let frame = packet.get(..length).unwrap_or_default();
                        ensure!(seen.len() + length <= MOST, "more than {MOST} bytes passed");
                        if is_of(network, frame) {
                            seen.extend_from_slice(frame);
                        }
                    }
                    Err(Errno::AGAIN) if ends.load(Ordering::Relaxed) => return Ok(seen),
                    Err(Errno::AGAIN | Errno::INTR) => (),
                    Err(error) => return Err(error.into()),
                }
            }
        });
        Ok(Some(Self { end, reading }))
    }

    /// Everything so far.
    pub fn end(self) -> Result<Seen> {
        self.end.store(true, Ordering::Relaxed);
        let seen = self.reading.join().map_err(|_| anyhow!("the reader panicked"))?;
        Ok(Seen(seen.context("read packets")?))
    }
}

/// Captured bytes.
#[derive(Debug)]
pub struct Seen(Vec<u8>);

impl Seen {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Nothing passed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether these bytes passed in one piece.
    pub fn has(&self, bytes: &[u8]) -> bool {
        memmem(&self.0, bytes)
    }
}

fn memmem(all: &[u8], wanted: &[u8]) -> bool {
    let Some(first) = wanted.first() else { return true };
    let mut rest = all;
    while let Some(at) = rest.iter().position(|byte| byte == first) {
        rest = rest.get(at..).unwrap_or_default();
        if rest.starts_with(wanted) {
            return true;
        }
        rest = rest.get(1..).unwrap_or_default();
    }
    false
}
