package loadgen

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// Events of a stream differ from one another in a few bytes. A body is therefore
// kept packed, without loss: a record holds bytes as they came, or says how a piece
// differs from the last one that did. That is a tenth of the memory, which is what
// an event costs most: pages that were never touched, and caches.
//
//	literal  recordLiteral, length (2 bytes), the bytes
//	like     recordLike, prefix, suffix, middle (2 bytes each), the middle's bytes:
//	         the pattern's first and last bytes with the middle between them
//
// No record crosses the end of a block. The pattern is the last literal that looks
// like a whole event.
const (
	recordLiteral = 0
	recordLike    = 1

	literalHead = 3
	likeHead    = 7
	maxLiteral  = blockBytes - literalHead
	minPattern  = 32
	maxPattern  = 1024
	shortMiddle = 32

	patternStart = "data:"
)

// isPattern says whether a literal is the pattern of what follows: a whole event, as
// far as one can see. What a read cut off must not take its place.
func isPattern(literal []byte) bool {
	return len(literal) >= minPattern && len(literal) <= maxPattern &&
		string(literal[:len(patternStart)]) == patternStart && literal[len(literal)-1] == '\n'
}

// append packs a piece of the body.
func (x *exchange) append(a *arena, p []byte) {
	x.size += len(p)
	for len(p) > 0 {
		n := eventEnd(p)
		if !x.packLike(a, p[:n]) {
			x.packLiteral(a, p[:n])
		}
		p = p[n:]
	}
}

// eventEnd is the offset behind the first empty line, or the length of p.
func eventEnd(p []byte) int {
	for at := 0; ; {
		i := bytes.IndexByte(p[at:], '\n')
		if i < 0 {
			return len(p)
		}
		if at += i + 1; at < len(p) && p[at] == '\n' {
			return at + 1
		}
	}
}

// room is where the next record of n bytes goes.
func (x *exchange) room(a *arena, n int) []byte {
	b := x.lastBlock
	if b == nil || b.n+n > blockBytes {
		b = a.block()
		if x.lastBlock == nil {
			x.first = b
		} else {
			x.lastBlock.next = b
		}
		x.lastBlock = b
	}
	room := b.data[b.n : b.n+n]
	b.n += n
	return room
}

// packLike packs p as a variant of the pattern, where it is one.
func (x *exchange) packLike(a *arena, p []byte) bool {
	like := x.pattern
	if len(p) > maxPattern || len(like) == 0 {
		return false
	}
	prefix, suffix := int(x.prefix), int(x.suffix)
	if middle := len(p) - prefix - suffix; middle < 0 || middle > shortMiddle ||
		!bytes.Equal(p[:prefix], like[:prefix]) || !bytes.Equal(p[len(p)-suffix:], like[len(like)-suffix:]) {
		prefix = commonPrefix(p, like)
		suffix = commonSuffix(p[prefix:], like[prefix:])
		if middle := len(p) - prefix - suffix; likeHead+middle > len(p)/2 {
			return false
		}
		if p[len(p)-1] == '\n' && prefix >= minPattern {
			// A whole event: the next ones differ where this one does. A piece that a
			// read cut off says nothing.
			x.prefix, x.suffix = uint16(prefix), uint16(suffix)
		}
	}
	middle := p[prefix : len(p)-suffix]
	room := x.room(a, likeHead+len(middle))
	room[0] = recordLike
	binary.LittleEndian.PutUint16(room[1:], uint16(prefix))
	binary.LittleEndian.PutUint16(room[3:], uint16(suffix))
	binary.LittleEndian.PutUint16(room[5:], uint16(len(middle)))
	copy(room[likeHead:], middle)
	return true
}

// packLiteral keeps p as it is.
func (x *exchange) packLiteral(a *arena, p []byte) {
	for len(p) > 0 {
		n := min(len(p), maxLiteral)
		if b := x.lastBlock; len(p) > maxPattern && b != nil && blockBytes-b.n > literalHead {
			n = min(n, blockBytes-b.n-literalHead)
		}
		room := x.room(a, literalHead+n)
		room[0] = recordLiteral
		binary.LittleEndian.PutUint16(room[1:], uint16(n))
		copy(room[literalHead:], p[:n])
		if literal := room[literalHead:]; isPattern(literal) {
			x.pattern, x.prefix, x.suffix = literal, 0, 0
		}
		p = p[n:]
	}
}

// commonPrefix is how many bytes a and b begin with in common.
func commonPrefix(a, b []byte) int {
	i, n := 0, min(len(a), len(b))
	for ; i+8 <= n; i += 8 {
		if d := binary.LittleEndian.Uint64(a[i:]) ^ binary.LittleEndian.Uint64(b[i:]); d != 0 {
			return i + bits.TrailingZeros64(d)/8
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// commonSuffix is how many bytes a and b end with in common.
func commonSuffix(a, b []byte) int {
	i, n := 0, min(len(a), len(b))
	for ; i+8 <= n; i += 8 {
		if d := binary.LittleEndian.Uint64(a[len(a)-i-8:]) ^ binary.LittleEndian.Uint64(b[len(b)-i-8:]); d != 0 {
			return i + bits.LeadingZeros64(d)/8
		}
	}
	for i < n && a[len(a)-1-i] == b[len(b)-1-i] {
		i++
	}
	return i
}

// unpacker reads a packed body from its beginning.
type unpacker struct {
	b    *block
	at   int
	like []byte // the pattern
}

func (x *exchange) unpack() unpacker { return unpacker{b: x.first} }

// record is one record of a packed body: a literal, or the middle of a variant of
// the pattern between its first prefix and its last suffix bytes.
type record struct {
	literal        []byte // nil for a variant
	prefix, suffix int
	middle         []byte
}

// next returns the next record; false at the end.
func (u *unpacker) next() (r record, ok bool) {
	for {
		if u.b == nil {
			return record{}, false
		}
		if u.at < u.b.n {
			break
		}
		u.b, u.at = u.b.next, 0
	}
	p := u.b.data[u.at:u.b.n]
	if p[0] == recordLiteral {
		n := literalHead + int(binary.LittleEndian.Uint16(p[1:]))
		u.at += n
		r.literal = p[literalHead:n]
		if isPattern(r.literal) {
			u.like = r.literal
		}
		return r, true
	}
	n := likeHead + int(binary.LittleEndian.Uint16(p[5:]))
	u.at += n
	return record{
		prefix: int(binary.LittleEndian.Uint16(p[1:])), suffix: int(binary.LittleEndian.Uint16(p[3:])), middle: p[likeHead:n],
	}, true
}

// bytes appends what a record stands for to p.
func (u *unpacker) bytes(p []byte, r record) []byte {
	if r.literal != nil {
		return append(p, r.literal...)
	}
	return append(append(append(p, u.like[:r.prefix]...), r.middle...), u.like[len(u.like)-r.suffix:]...)
}

// begin appends to p, of the body, whole records until p has size bytes.
func (x *exchange) begin(p []byte, size int) []byte {
	u := x.unpack()
	for len(p) < size {
		r, ok := u.next()
		if !ok {
			break
		}
		p = u.bytes(p, r)
	}
	return p
}

// body appends the whole body to p.
func (x *exchange) body(p []byte) []byte { return x.begin(p, len(p)+x.size) }
