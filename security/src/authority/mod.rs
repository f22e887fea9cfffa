//! A cluster's own CA.
//!
//! Its folder has one file for each root: `root-0001.pem` holds the key, the certificate and, from the second root on, the
//! same key's certificate by the root before it (the cross certificate). So whoever trusts the old root alone believes
//! what the new one signs. A rotation makes the next root, and retiring drops the older one when everybody has a
//! certificate of the newer.
//!
//! Invariant: a certificate holds what this module decides. Only the public key of a request is used.

mod issue;
mod root;

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls::pki_types::CertificateDer;

pub use self::issue::{Holder, IssueError, Issued, Leaf};
use self::root::Root;
use crate::files::{self, FileError};
use crate::identity::Cluster;
use crate::roots::{self, Roots, RootsError};

/// A CA that cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The file system's answer.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file of the folder that was damaged, or is not ours.
    #[error("{} is no root of a Ringtune CA: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Roots of different clusters in one folder.
    #[error("{} holds roots of the clusters {one} and {other}: they are one folder for each", folder.display())]
    Mixed {
        /// The CA's folder.
        folder: PathBuf,
        /// The first root's cluster.
        one: Cluster,
        /// The other's.
        other: Cluster,
    },
    /// Roots that no trust can be built on.
    #[error(transparent)]
    Roots(#[from] RootsError),
    /// A key or certificate could not be made.
    #[error("cannot make a root: {0}")]
    Make(String),
    /// There are two roots already.
    #[error("root {newer} is not alone yet: retire root {older} before the next rotation")]
    Rotating {
        /// The older root's number.
        older: u32,
        /// The newer root's number.
        newer: u32,
    },
    /// There is no older root.
    #[error(
        "root {only} is the only one: rotate first, and retire the old one when all have certificates of the new"
    )]
    Alone {
        /// Its number.
        only: u32,
    },
}

/// The CA. It holds its keys in memory, shows them to nobody, and issues what [`Leaf`] asks for.
#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    /// Never empty, the newest last.
    stored: Vec<Root>,
    roots: Roots,
    cluster: Cluster,
}

impl Authority {
    /// Opens the CA in a folder, or makes one for a new cluster where there is none. Blocks.
    ///
    /// # Errors
    /// The folder cannot be used, is open to everybody, or a file of it was damaged.
    pub fn open_or_make(folder: &Path, now: SystemTime) -> Result<Self, AuthorityError> {
        files::make_folder(folder)?;
        let mut stored = root::read_all(folder)?;
        if stored.is_empty() {
            let first = Root::make(Cluster::random(), 1, None, now).map_err(AuthorityError::Make)?;
            first.write(folder)?;
            stored.push(first);
        }
        Self::of(folder.to_owned(), stored)
    }

    fn of(folder: PathBuf, stored: Vec<Root>) -> Result<Self, AuthorityError> {
        let roots = Roots::new(stored.iter().map(|root| root.certificate.clone()).collect())?;
        let newest = stored.last().ok_or(RootsError::None)?;
        let cluster = newest.cluster;
        if let Some(other) = stored.iter().find(|root| root.cluster != cluster) {
            return Err(AuthorityError::Mixed { folder, one: other.cluster, other: cluster });
        }
        Ok(Self { folder, stored, roots, cluster })
    }

    /// The cluster that was made with it.
    pub fn cluster(&self) -> Cluster {
        self.cluster
    }

    /// All roots, the newest last: what everybody is to trust.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The SHA-256 of the newest root's DER, for tokens.
    pub fn hash(&self) -> [u8; 32] {
        self.roots.ders().last().map(roots::hash).unwrap_or_default()
    }

    /// The numbers of the roots, the newest last: one, or two while it rotates.
    pub fn numbers(&self) -> Vec<u32> {
        self.stored.iter().map(|root| root.number).collect()
    }

    /// Makes a certificate for whoever has the key of a CSR. Of the CSR nothing but its public key is taken. The
    /// certificate begins an hour ago, against clocks that differ, and ends with its root at the latest.
    ///
    /// # Errors
    /// The CSR is none, its key is not ECDSA P-256, or the leaf cannot be.
    pub fn issue(&self, csr_der: &[u8], leaf: &Leaf, now: SystemTime) -> Result<Issued, IssueError> {
        let newest = self.stored.last().ok_or(IssueError::Expired)?;
        issue::issue(newest, csr_der, leaf, now, self.after_leaf())
    }

    /// What follows a leaf in its chain: the cross certificate for those who know the old root alone, and all roots,
    /// among which whoever joins finds the one of its token.
    fn after_leaf(&self) -> Vec<CertificateDer<'static>> {
        let rotating = self.stored.len() > 1;
        let cross = self.stored.last().and_then(|newest| newest.cross.clone()).filter(|_| rotating);
        cross.into_iter().chain(self.roots.ders().iter().rev().cloned()).collect()
    }

    /// Makes the next root. From now on it signs, and both are trusted. Blocks.
    ///
    /// # Errors
    /// There are two roots already, or the file cannot be written: then nothing has changed.
    pub fn rotate(&mut self, now: SystemTime) -> Result<(), AuthorityError> {
        let older = match self.stored.as_slice() {
            [only] => only,
            [older, .., newer] => {
                return Err(AuthorityError::Rotating { older: older.number, newer: newer.number });
            }
            [] => return Err(RootsError::None.into()),
        };
        let next =
            Root::make(self.cluster, older.number + 1, Some(older), now).map_err(AuthorityError::Make)?;
        next.write(&self.folder)?;
        let roots = Roots::new([self.roots.ders(), std::slice::from_ref(&next.certificate)].concat())?;
        self.stored.push(next);
        self.roots = roots;
        Ok(())
    }

    /// Drops the older root: nobody who has a certificate of it alone is believed any more. Blocks.
    ///
    /// # Errors
    /// There is one root only, or the file cannot be removed: then nothing has changed.
    pub fn retire(&mut self) -> Result<(), AuthorityError> {
        let older = match self.stored.as_slice() {
            [older, _, ..] => older,
            [only] => return Err(AuthorityError::Alone { only: only.number }),
            [] => return Err(RootsError::None.into()),
        };
        let roots = Roots::new(self.roots.ders().iter().skip(1).cloned().collect())?;
        files::remove(&root::path(&self.folder, older.number))?;
        self.stored.remove(0);
        self.roots = roots;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
