//! Who holds which content now: together with others while it is being tied to a job, alone while it is being removed.
//!
//! Invariant: a content is removed only by who holds it alone and has asked the store after that whether a job wants
//! it; a job is made only by who holds its contents from before it looked for them until the job is stored. So none
//! goes between the look and the job.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use ringtune_shared::ids::ContentHash;
use tokio::sync::Notify;

/// All that is held; clones share it.
#[derive(Clone, Debug, Default)]
pub struct Claims(Arc<Table>);

#[derive(Debug, Default)]
struct Table {
    held: Mutex<HashMap<ContentHash, Holders>>,
    /// Told whenever a content is held alone no more.
    given_back: Notify,
}

#[derive(Debug)]
enum Holders {
    Together(usize),
    One,
}

/// Some contents, held until this is dropped. Move it to where the work is done: a call that is cancelled drops what it
/// owns, while what it started may run on.
#[derive(Debug)]
#[must_use = "dropped, it holds nothing"]
pub struct Claim {
    table: Arc<Table>,
    contents: Vec<ContentHash>,
}

impl Claims {
    /// Holds all of `contents` together with whoever else does; waits for those that somebody holds alone.
    pub async fn share(&self, mut contents: Vec<ContentHash>) -> Claim {
        contents.sort_unstable();
        contents.dedup();
        loop {
            let given_back = self.0.given_back.notified();
            tokio::pin!(given_back);
            // From here on no giving back is missed.
            given_back.as_mut().enable();
            if self.try_share(&contents) {
                return Claim { table: self.0.clone(), contents };
            }
            given_back.await;
        }
    }

    /// Holds those of `contents` alone that nobody holds.
    pub fn alone(&self, contents: &[ContentHash]) -> Claim {
        let mut held = self.0.held();
        let mut mine = Vec::with_capacity(contents.len());
        for hash in contents {
            if !held.contains_key(hash) {
                held.insert(*hash, Holders::One);
                mine.push(*hash);
            }
        }
        Claim { table: self.0.clone(), contents: mine }
    }

    /// Whether nobody holds anything.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.0.held().is_empty()
    }

    /// All of them or none.
    fn try_share(&self, contents: &[ContentHash]) -> bool {
        let mut held = self.0.held();
        if contents.iter().any(|hash| matches!(held.get(hash), Some(Holders::One))) {
            return false;
        }
        for hash in contents {
            match held.entry(*hash).or_insert(Holders::Together(0)) {
                Holders::Together(count) => *count += 1,
                Holders::One => {}
            }
        }
        true
    }
}

impl Claim {
    /// What is held, each once.
    pub fn contents(&self) -> &[ContentHash] {
        &self.contents
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut held = self.table.held();
        for hash in &self.contents {
            match held.get_mut(hash) {
                Some(Holders::Together(count)) if *count > 1 => *count -= 1,
                _ => drop(held.remove(hash)),
            }
        }
        drop(held);
        self.table.given_back.notify_waiters();
    }
}

impl Table {
    fn held(&self) -> MutexGuard<'_, HashMap<ContentHash, Holders>> {
        // Whole after every single step, whatever happened to the thread that held it.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn contents() -> [ContentHash; 3] {
        [b"a", b"b", b"c"].map(|bytes| ContentHash::of(bytes))
    }

    #[tokio::test]
    async fn what_is_shared_is_not_held_alone_until_the_last_gives_it_back() {
        let claims = Claims::default();
        let [a, b, c] = contents();
        let one = claims.share(vec![a, b, a]).await;
        let other = claims.share(vec![b]).await;
        assert_eq!(claims.alone(&[a, b, c]).contents(), [c]);
        drop(one);
        assert_eq!(claims.alone(&[a, b]).contents(), [a]);
        drop(other);
        assert_eq!(claims.alone(&[a, b]).contents(), [a, b]);
        assert!(claims.is_idle(), "nothing is kept of what nobody holds");
    }

    #[tokio::test(start_paused = true)]
    async fn who_shares_waits_for_who_is_alone_and_holds_nothing_meanwhile() {
        let claims = Claims::default();
        let [a, b, _] = contents();
        let alone = claims.alone(&[a]);
        let sharing = claims.share(vec![a, b]);
        tokio::pin!(sharing);
        let early = tokio::time::timeout(Duration::from_secs(1), sharing.as_mut()).await;
        assert!(early.is_err());
        assert_eq!(claims.alone(&[b]).contents(), [b]);
        drop(alone);
        let shared = tokio::time::timeout(Duration::from_secs(1), sharing).await.unwrap();
        assert_eq!(shared.contents().len(), 2);
    }
}
