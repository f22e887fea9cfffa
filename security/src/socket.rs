//! How sockets are set, on both sides.

use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::{TcpStream, UnixStream};

/// After how much silence the operating system asks whether the other side is there.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// How much is sent at a time within a machine: every kernel has it, and lets everybody choose it. Others, as bbr, send by a
/// clock that they set by what a network takes, which costs half of the bandwidth where there is none.
const WITHOUT_PACING: &str = "reno";

/// The system makes twice as much of it.
const LOCAL_BUFFER_BYTES: usize = 2 << 20;

/// What is written goes out at once, and a side that is gone is noticed. Where one of these cannot be set, the connection
/// is only worse.
pub(crate) fn prepare(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, KEEPALIVE);
    if is_within_this_machine(stream) {
        let _ = sockopt::set_tcp_congestion(stream, WITHOUT_PACING);
    }
}

/// A local socket of both sides. As much waits in it as in a connection within this machine, where the system allows it.
pub(crate) fn prepare_local(stream: &UnixStream) {
    let _ = sockopt::set_socket_send_buffer_size(stream, LOCAL_BUFFER_BYTES);
}

/// Both ends are here, so that nothing can be lost or late on the way.
pub(crate) fn is_within_this_machine(stream: &TcpStream) -> bool {
    let (here, there) = (stream.local_addr(), stream.peer_addr());
    here.is_ok_and(|here| there.is_ok_and(|there| here.ip() == there.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_is_set() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        prepare(&stream);
        assert!(stream.nodelay().unwrap() && sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE);
        assert_eq!(sockopt::tcp_congestion(&stream).unwrap(), WITHOUT_PACING);
    }
}
