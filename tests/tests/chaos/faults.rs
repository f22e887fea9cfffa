//! Each fault does what it says.
