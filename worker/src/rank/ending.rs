//! How long a rank that ends may take.

use std::time::Duration;

/// A neighbour that fails tells the coordinator why, and the coordinator ends us. Only when that does not come is
/// "my neighbour is gone" the best reason there is.
pub(super) const WAIT_FOR_A_BETTER_REASON: Duration = Duration::from_secs(3);
/// For what a failed job leaves.
pub(super) const LAST_UPLOAD: Duration = Duration::from_secs(10);
