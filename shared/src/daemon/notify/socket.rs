//! The socket of the service manager.

use std::{
    ffi::OsStr,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    path::Path,
};

#[derive(Debug)]
pub(super) struct Socket {
    own: UnixDatagram,
    address: SocketAddr,
}

impl Socket {
    /// `/path`, or `@name` of an abstract one.
    pub(super) fn to(address: &OsStr) -> io::Result<Self> {
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(Path::new(address))?,
            _ => {
                let wrong = "it is neither an absolute path nor @NAME";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, wrong));
            }
        };
        let own = UnixDatagram::unbound()?;
        own.set_nonblocking(true)?;
        Ok(Self { own, address })
    }

    /// Does not block.
    pub(super) fn send(&self, message: &str) -> io::Result<()> {
        self.own.send_to_addr(message.as_bytes(), &self.address).map(|_| ())
    }
}
