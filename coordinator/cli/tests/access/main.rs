//! The command and a coordinator that asks who it is: logins, certificates, tokens, the authority.

#![allow(clippy::expect_used, reason = "a test may end with a panic")]

mod administration;
mod connecting;
mod fake;
mod login;
