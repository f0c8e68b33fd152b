//! Soak: placeholder while being written.
