//! Whether anybody still waits for what is computed.

/// What long work asks from time to time, to end early when its asker is gone; and whom it tells how far it is.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    ask: &'a dyn Fn() -> bool,
    tell: &'a dyn Fn(usize, usize),
}

impl<'a> Wanted<'a> {
    /// By a question that may be asked often. Nobody is told anything.
    pub fn by(ask: &'a dyn Fn() -> bool) -> Self {
        Self { ask, tell: &|_, _| () }
    }

    /// The same, and this is told how many of how many parts are done.
    #[must_use]
    pub fn telling(self, tell: &'a dyn Fn(usize, usize)) -> Self {
        Self { tell, ..self }
    }

    /// Tells that so many of all parts are done; whether somebody waits for the others.
    pub fn done(self, parts: usize, all: usize) -> bool {
        (self.tell)(parts, all);
        self.still()
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
