//! Names of remote files.

use ringtune_shared::files::safe_file_name;

/// Files in a repository or below a prefix.
pub(crate) const MOST_FILES: usize = 20_000;

/// Checks that a listed name, put after a folder, names a file in that folder.
pub(crate) fn check_listed(name: &str) -> Result<(), String> {
    let shown: String = name.chars().take(100).collect();
    if name.len() <= 1024 && name.split('/').all(safe_file_name) {
        return Ok(());
    }
    Err(format!("lists a file {shown:?}, whose name leads out of its folder or is no name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_in_their_folder() {
        for good in ["model_index.json", "unet/config.json", "a/b c/ü.txt"] {
            assert_eq!(check_listed(good), Ok(()));
        }
        for wrong in ["", "/etc/passwd", "../x", "a/../b", "a//b", "a\\b", "a/./b", "a/\n", &"x/".repeat(600)]
        {
            assert!(check_listed(wrong).is_err(), "{wrong:?}");
        }
    }
}
