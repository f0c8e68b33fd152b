//! Turns an input into a layer's blob. The tar is written here by hand, with right checksums, so that inputs are not lost on them.

use crate::tape::{Tape, write_run};
use sela_protocol::blob::BlobId;
use sela_sandbox::image::manifest::Compression;
use std::io::Write as _;
use std::path::Path;

/// A blob and what is said of it.
pub(super) struct Case {
    pub(super) blob: Vec<u8>,
    pub(super) compression: Compression,
    pub(super) diff_id: BlobId,
}

/// First byte of an input.
const ENTRIES: u8 = 0;
const TAR: u8 = 1;
const BLOB: u8 = 2;

/// Kinds of entries, by their number in an input: the byte that stands for them in a tar.
const KINDS: &[u8; 16] = b"0052211346xgLKS7";

/// Names that meet each other, and some that are no names.
const NAMES: [&[u8]; 16] = [
    b"a",
    b"b",
    b"c",
    b"a",
    b"b",
    b".",
    b"..",
    b"",
    b".wh.a",
    b".wh.b",
    b".wh..wh..opq",
    b".wh..wh.plnk",
    b".wh.",
    b"outside",
    b"secret",
    b"\xff\xfe",
];

impl Case {
    pub(super) fn read(input: &[u8], yard: &Path) -> Self {
        let mut tape = Tape::new(input);
        let form = tape.choice(3);
        let compression = match tape.choice(3) {
            0 => Compression::Plain,
            1 => Compression::Gzip,
            _ => Compression::Zstd,
        };
        if form == BLOB {
            let blob = tape.rest().to_vec();
            // Plain, the content's hash is right as well.
            let diff_id = BlobId::of(&blob);
            return Self {
                blob,
                compression,
                diff_id,
            };
        }
        let tar = if form == TAR {
            tape.rest().to_vec()
        } else {
            write_entries(&mut tape, yard)
        };
        let diff_id = BlobId::of(&tar);
        let blob = compress(&tar, compression);
        Self {
            blob,
            compression,
            diff_id,
        }
    }
}

fn compress(tar: &[u8], compression: Compression) -> Vec<u8> {
    match compression {
        Compression::Plain => tar.to_vec(),
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder
                .write_all(tar)
                .and_then(|()| encoder.finish())
                .expect("memory takes bytes")
        }
        Compression::Zstd => zstd::encode_all(tar, 1).expect("memory takes bytes"),
    }
}

fn write_entries(tape: &mut Tape<'_>, yard: &Path) -> Vec<u8> {
    let mut tar = Vec::new();
    while !tape.is_empty() && tar.len() < (1 << 20) {
        write_entry(tape, yard, &mut tar);
    }
    tar.resize(tar.len() + 1024, 0);
    tar
}

/// The numbers in a header.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Numbers {
    pub(super) mode: u64,
    pub(super) uid: u64,
    pub(super) gid: u64,
    pub(super) size: u64,
    pub(super) modified: u64,
}

fn write_entry(tape: &mut Tape<'_>, yard: &Path, tar: &mut Vec<u8>) {
    let kind = KINDS[usize::from(tape.choice(16))];
    let name = path(tape, yard);
    let target = path(tape, yard);
    let flags = tape.byte();
    let mut number_if = |flag: u8, otherwise: u64| if flags & flag == 0 { otherwise } else { tape.u64() };
    let mut numbers = Numbers {
        mode: number_if(1, 0o644),
        uid: number_if(2, 0),
        gid: number_if(4, 0),
        modified: number_if(8, 0),
        size: 0,
    };
    let content = match kind {
        b'0' | b'x' | b'g' | b'L' | b'K' | b'S' | b'7' => tape.run(),
        _ => &[],
    };
    numbers.size = if flags & 16 == 0 {
        content.len() as u64
    } else {
        tape.u64()
    };
    let mut header = header(kind, &name, &target, numbers);
    let magic: &[u8] = match flags >> 5 & 3 {
        0 => b"ustar  \0",
        1 => b"ustar\x0000",
        _ => b"\0\0\0\0\0\0\0\0",
    };
    put(&mut header[257..265], magic);
    if flags & 128 != 0 {
        // A prefix, of POSIX's form; sparse maps and the like, of GNU's.
        put(&mut header[345..500], tape.run());
    }
    append(tar, header, content);
}

/// A header of GNU's form, without its checksum.
pub(super) fn header(kind: u8, name: &[u8], target: &[u8], numbers: Numbers) -> [u8; 512] {
    let mut header = [0; 512];
    put(&mut header[..100], name);
    number(&mut header[100..108], numbers.mode);
    number(&mut header[108..116], numbers.uid);
    number(&mut header[116..124], numbers.gid);
    number(&mut header[124..136], numbers.size);
    number(&mut header[136..148], numbers.modified);
    header[156] = kind;
    put(&mut header[157..257], target);
    put(&mut header[257..265], b"ustar  \0");
    header
}

/// Writes a header with its checksum, and the content in whole blocks.
pub(super) fn append(tar: &mut Vec<u8>, mut header: [u8; 512], content: &[u8]) {
    checksum(&mut header);
    tar.extend_from_slice(&header);
    tar.extend_from_slice(content);
    tar.resize(tar.len().next_multiple_of(512), 0);
}

fn path(tape: &mut Tape<'_>, yard: &Path) -> Vec<u8> {
    let shape = tape.byte();
    match shape >> 4 {
        0 => return tape.run().to_vec(),
        1 => return yard.join("outside/secret").into_os_string().into_encoded_bytes(),
        2 => return b"../outside/secret".to_vec(),
        _ => {}
    }
    let names: Vec<&[u8]> = (0..shape & 3).map(|_| NAMES[usize::from(tape.choice(16))]).collect();
    let mut path = [names.as_slice(), &[NAMES[usize::from(tape.choice(16))]]]
        .concat()
        .join(&b'/');
    if shape & 4 != 0 {
        path.push(b'/');
    }
    path
}

fn put(field: &mut [u8], bytes: &[u8]) {
    let count = field.len().min(bytes.len());
    field[..count].copy_from_slice(&bytes[..count]);
}

/// Octal where it fits, else GNU's base 256.
fn number(field: &mut [u8], value: u64) {
    let digits = field.len() - 1;
    if value < 1 << (3 * digits) {
        put(field, format!("{value:0digits$o}").as_bytes());
        return;
    }
    let bytes = value.to_be_bytes();
    let start = field.len().saturating_sub(bytes.len());
    // The highest bits of a field of 8 bytes give way to the mark.
    field[start..].copy_from_slice(&bytes);
    field[0] |= 0x80;
}

fn checksum(header: &mut [u8; 512]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    put(&mut header[148..155], format!("{sum:06o}\0").as_bytes());
}

/// Layers with something of each kind, in each form.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for compression in 0..3 {
        let mut entries = vec![ENTRIES, compression];
        // d a/, a/b with content, c → a, hard link, whiteout, opaque, pipe, pax, long name.
        for (kind, name, content) in [
            (2, &[0x44, 0][..], None),
            (0, &[0x41, 0, 1], Some(&b"content"[..])),
            (3, &[0x40, 2], None),
            (5, &[0x40, 4], None),
            (0, &[0x41, 0, 9], Some(b"")),
            (0, &[0x41, 0, 10], Some(b"")),
            (9, &[0x40, 0], None),
            (10, &[0x40, 0], Some(b"11 path=a/c\n")),
            (0, &[0x40, 0], Some(b"named by what stands before")),
            (12, &[0x40, 0], Some(b"a/b/c/d/e/f\0")),
            (0, &[0x40, 0], Some(b"the same by GNU's way")),
        ] {
            entries.push(kind);
            entries.extend_from_slice(name);
            entries.extend_from_slice(&[0x41, 0, 1]);
            entries.push(0);
            if let Some(content) = content {
                write_run(&mut entries, content);
            }
        }
        let tar = write_entries(&mut Tape::new(&entries[2..]), Path::new("/"));
        let packed = compress(
            &tar,
            [Compression::Plain, Compression::Gzip, Compression::Zstd][usize::from(compression)],
        );
        seeds.push(entries);
        seeds.push([&[TAR, compression], tar.as_slice()].concat());
        seeds.push([&[BLOB, compression], packed.as_slice()].concat());
    }
    seeds
}
