//! Decides which message goes to the service manager when; pure.

use std::time::Duration;

/// Characters of a status; nobody reads more.
const LONGEST_STATUS: usize = 240;

/// News of a daemon.
#[derive(Clone, Copy, Debug)]
pub(super) enum News<'a> {
    Ready,
    Status(&'a str),
    Stopping,
    Reloading { microseconds: u64 },
    Progress,
}

/// What the service manager knows by now.
#[derive(Debug)]
pub(super) struct NotifyState {
    /// Interval of signs of progress.
    pace: Option<Duration>,
    /// Time of the last one.
    fed: Option<Duration>,
    status: String,
    /// Lines of a message that could not be sent; they are part of the next one.
    owed: String,
    /// The message in flight.
    trying: Trying,
    has_failed: bool,
}

/// Takes effect once the message is sent.
#[derive(Debug, Default)]
struct Trying {
    owed: String,
    fed: Option<Duration>,
    status: Option<String>,
}

impl NotifyState {
    pub(super) fn new(pace: Option<Duration>) -> Self {
        let trying = Trying::default();
        Self { pace, fed: None, status: String::new(), owed: String::new(), trying, has_failed: false }
    }

    /// The message that is due; none: nothing is new. Afterwards it [went](Self::went) or it [failed](Self::failed).
    pub(super) fn message(&mut self, news: News<'_>, now: Duration) -> Option<String> {
        let mut trying = Trying { owed: self.owed.clone(), ..Trying::default() };
        let mut passing = String::new();
        match news {
            News::Ready => trying.owed += "READY=1\n",
            News::Stopping => trying.owed += "STOPPING=1\n",
            News::Reloading { microseconds } => {
                trying.owed += &format!("RELOADING=1\nMONOTONIC_USEC={microseconds}\n");
            }
            News::Status(text) => {
                let text = one_line(text);
                if text == self.status {
                    return None;
                }
                passing = format!("STATUS={text}\n");
                trying.status = Some(text);
            }
            News::Progress => {
                let pace = self.pace?;
                if self.fed.is_some_and(|fed| now < fed + pace) {
                    return None;
                }
                passing.push_str("WATCHDOG=1\n");
                trying.fed = Some(now);
            }
        }
        let message = format!("{}{passing}", trying.owed);
        self.trying = trying;
        Some(message)
    }

    /// The message arrived.
    pub(super) fn went(&mut self) {
        let Trying { fed, status, .. } = std::mem::take(&mut self.trying);
        self.owed.clear();
        self.fed = fed.or(self.fed);
        self.status = status.unwrap_or_else(|| std::mem::take(&mut self.status));
    }

    /// The message did not: what must not be lost is said with the next one. Whether it is the first that failed.
    pub(super) fn failed(&mut self) -> bool {
        let tried = std::mem::take(&mut self.trying);
        // Of a manager that is gone for good; a life has few such lines.
        if tried.owed.len() < 1024 {
            self.owed = tried.owed;
        }
        !std::mem::replace(&mut self.has_failed, true)
    }
}

/// A status is one line: what comes from elsewhere could add messages of its own.
fn one_line(text: &str) -> String {
    text.chars().take(LONGEST_STATUS).map(|symbol| if symbol.is_control() { ' ' } else { symbol }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn said(told: &mut NotifyState, news: News<'_>, at: u32) -> Option<String> {
        let message = told.message(news, SECOND * at);
        if message.is_some() {
            told.went();
        }
        message
    }

    #[test]
    fn progress_is_said_at_its_pace_and_only_where_there_is_some() {
        let mut told = NotifyState::new(Some(SECOND * 15));
        let times: Vec<u32> =
            (0..60).filter(|second| said(&mut told, News::Progress, *second).is_some()).collect();
        assert_eq!(times, [0, 15, 30, 45]);
        // No other news is a sign of progress.
        for news in [News::Ready, News::Status("busy"), News::Stopping, News::Reloading { microseconds: 1 }] {
            assert!(!said(&mut told, news, 1000).unwrap().contains("WATCHDOG"), "{news:?}");
        }
        assert_eq!(said(&mut told, News::Progress, 1000).as_deref(), Some("WATCHDOG=1\n"));
        assert_eq!(said(&mut NotifyState::new(None), News::Progress, 0), None);
    }

    #[test]
    fn a_status_is_one_line_and_said_once() {
        let mut told = NotifyState::new(None);
        assert_eq!(said(&mut told, News::Status("a\nREADY=1"), 0).as_deref(), Some("STATUS=a READY=1\n"));
        assert_eq!(said(&mut told, News::Status("a\nREADY=1"), 1), None);
        assert_eq!(said(&mut told, News::Status("b"), 2).as_deref(), Some("STATUS=b\n"));
        let long = said(&mut told, News::Status(&"é".repeat(1000)), 3).unwrap();
        assert_eq!(long.chars().count(), "STATUS=\n".len() + LONGEST_STATUS);
    }

    #[test]
    fn what_did_not_go_goes_with_the_next_message_and_progress_is_said_again() {
        let mut told = NotifyState::new(Some(SECOND * 15));
        assert_eq!(told.message(News::Ready, SECOND).as_deref(), Some("READY=1\n"));
        assert!(told.failed());
        assert_eq!(told.message(News::Progress, SECOND).as_deref(), Some("READY=1\nWATCHDOG=1\n"));
        assert!(!told.failed(), "it is said once");
        assert_eq!(said(&mut told, News::Progress, 2).as_deref(), Some("READY=1\nWATCHDOG=1\n"));
        assert_eq!(said(&mut told, News::Stopping, 3).as_deref(), Some("STOPPING=1\n"));
    }
}
