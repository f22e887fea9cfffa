//! Holds of a state: a change of the state waits for them.

use tokio::sync::watch;

/// The number of holds. Cheap to clone: all clones share it.
#[derive(Clone, Debug)]
pub struct Holds(watch::Sender<usize>);

/// A hold of a state, until it is dropped.
#[derive(Debug)]
pub struct Hold(watch::Sender<usize>);

impl Default for Holds {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Holds {
    /// Begins a hold.
    #[must_use]
    pub fn begin(&self) -> Hold {
        self.0.send_modify(|count| *count += 1);
        Hold(self.0.clone())
    }

    /// Waits until nobody holds the state.
    pub async fn all_let_go(&self) {
        // It cannot be closed: this sends.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn whoever_changes_a_state_waits_for_all_who_hold_it() {
        let holds = Holds::default();
        holds.all_let_go().await;
        let (one, other) = (holds.begin(), holds.clone().begin());
        drop(one);
        assert!(timeout(Duration::from_millis(20), holds.all_let_go()).await.is_err());
        let waiting = tokio::spawn({
            let holds = holds.clone();
            async move { holds.all_let_go().await }
        });
        drop(other);
        waiting.await.unwrap();
    }
}
