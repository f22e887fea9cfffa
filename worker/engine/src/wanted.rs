//! Whether anybody still waits for what is computed.

/// What long work asks from time to time, to end early when its asker is gone.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    ask: &'a dyn Fn() -> bool,
}

impl<'a> Wanted<'a> {
    /// By a question that may be asked often.
    pub fn by(ask: &'a dyn Fn() -> bool) -> Self {
        Self { ask }
    }

    /// Whether somebody waits, now.
    pub fn still(self) -> bool {
        (self.ask)()
    }
}

impl std::fmt::Debug for Wanted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wanted").field("still", &self.still()).finish()
    }
}
