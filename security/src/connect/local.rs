//! Connections through a local socket, to which the server has invited this side.

use std::os::fd::BorrowedFd;

use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;

use super::error::ConnectError;
use super::outgoing::Outgoing;
use crate::accept::Invitation;
use crate::accept::local::{WELCOME, is_of, own_user};
use crate::handed;

/// Shows the invitation and hands `files` over, and waits until this side is welcome.
pub(super) async fn connect(
    invitation: &Invitation,
    files: &[BorrowedFd<'_>],
) -> Result<Outgoing, ConnectError> {
    let address = || invitation.path.display().to_string();
    let closed = |cause| ConnectError::Closed { address: address(), cause };
    let stream = UnixStream::connect(&invitation.path).await;
    let mut stream = stream.map_err(|cause| ConnectError::Unreachable { address: address(), cause })?;
    if !is_of(&stream, own_user()) {
        return Err(ConnectError::OtherUser { address: address() });
    }
    handed::send(&mut stream, &invitation.secret, files).await.map_err(|error| closed(Some(error)))?;
    let mut word = [0];
    stream.read_exact(&mut word).await.map_err(|error| closed(Some(error)))?;
    if word != [WELCOME] {
        return Err(closed(None));
    }
    Outgoing::local(stream, address()).await
}
