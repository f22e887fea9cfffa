//! Files that one process hands to another one of this machine, through a local socket: memory that both share, say.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::UnixStream;

/// Files of one connection at most; the system closes what is beyond.
const MOST_FILES: usize = 2;

/// Files that the peer of a connection handed over. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Handed(Arc<[OwnedFd]>);

impl Handed {
    /// In the order in which they were handed over.
    pub fn files(&self) -> &[OwnedFd] {
        &self.0
    }
}

impl From<Vec<OwnedFd>> for Handed {
    fn from(files: Vec<OwnedFd>) -> Self {
        Self(files.into())
    }
}

/// Sends `bytes`, of which there is at least one, and the files with the first of them.
pub(crate) async fn send(stream: &mut UnixStream, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let sent = stream.async_io(Interest::WRITABLE, || {
        let mut with = SendAncillaryBuffer::new(&mut space);
        // There may be room for one more, as sizes are rounded up.
        let too_many = files.len() > MOST_FILES;
        if too_many || !(files.is_empty() || with.push(SendAncillaryMessage::ScmRights(files))) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "these are too many files to hand over"));
        }
        Ok(sendmsg(&*stream, &[IoSlice::new(bytes)], &mut with, SendFlags::NOSIGNAL)?)
    });
    let sent = sent.await?;
    stream.write_all(bytes.get(sent..).unwrap_or_default()).await
}

/// Receives as many bytes as there is room for, and the files that come with the first of them.
pub(crate) async fn receive(stream: &mut UnixStream, bytes: &mut [u8]) -> io::Result<Handed> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let came = stream.async_io(Interest::READABLE, || {
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let count = recvmsg(&*stream, &mut [IoSliceMut::new(bytes)], &mut with, flags)?.bytes;
        let rights = with.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        Ok((count, rights.flatten().collect::<Vec<OwnedFd>>()))
    });
    let (count, files) = came.await?;
    if count == 0 && !bytes.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.read_exact(bytes.get_mut(count..).unwrap_or_default()).await?;
    Ok(files.into())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _, Write as _};
    use std::os::fd::AsFd as _;

    use super::*;

    #[tokio::test]
    async fn files_come_with_the_first_byte_and_too_many_do_not() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"shared").unwrap();
        send(&mut one, b"secret and more", &[file.as_fd(), file.as_fd()]).await.unwrap();
        let mut secret = [0; 6];
        let handed = receive(&mut other, &mut secret).await.unwrap();
        assert_eq!((&secret, handed.files().len()), (b"secret", 2));
        let mut came = std::fs::File::from(handed.files()[1].try_clone().unwrap());
        let mut text = String::new();
        came.rewind().unwrap();
        came.read_to_string(&mut text).unwrap();
        assert_eq!(text, "shared");
        // What follows comes as ever.
        let mut rest = [0; 9];
        other.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b" and more");
        let three = [file.as_fd(), file.as_fd(), file.as_fd()];
        assert_eq!(send(&mut one, b"s", &three).await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        // Without any, and cut.
        send(&mut one, b"sec", &[]).await.unwrap();
        drop(one);
        let error = receive(&mut other, &mut secret).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }
}
