//! Chooses the coordinator to call, and the credentials for it.

use super::{AccessError, Found, Given, Places, find, find::admin};
use crate::client::CoordinatorUrl;

/// A coordinator, and the credentials for it.
#[derive(Debug)]
pub enum Choice {
    /// Without TLS: nobody is asked who they are.
    Open(CoordinatorUrl),
    /// With TLS.
    Secure(CoordinatorUrl, Box<Found>),
    /// Nobody named one: this machine's, which has or had TLS. The first try tells.
    Here(CoordinatorUrl, Box<Found>),
}

/// Chooses: the one that is named, that of the last login, or this machine's. Blocks.
///
/// # Errors
/// There are no credentials where some are needed.
pub fn choose(named: Option<&CoordinatorUrl>, given: &Given) -> Result<Choice, AccessError> {
    let last = || match Places::of(&given.environment) {
        Ok(places) => places.default_coordinator(),
        Err(_) => Ok(None),
    };
    let url = match named {
        Some(url) => Some(url.clone()),
        None => last()?,
    };
    match url {
        Some(url) if url.is_secure() => {
            let found = Box::new(find(&url, given)?);
            Ok(Choice::Secure(url, found))
        }
        Some(url) => Ok(Choice::Open(url)),
        None => {
            let url = CoordinatorUrl::on_this_machine();
            Ok(match admin(&given.environment)? {
                Some(found) => Choice::Here(url.secured(), Box::new(found)),
                None => Choice::Open(url),
            })
        }
    }
}
