//! Ringtune: proto.
