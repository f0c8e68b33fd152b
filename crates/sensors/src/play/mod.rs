//! Games, and what is treated as one: full-screen windows, Steam's own word, VR, the owner's list.

pub(crate) mod fullscreen;
pub(crate) mod processes;
pub(crate) mod steam;
