package resultfile

import (
	"encoding/binary"
	"errors"
)

// The kinds of value of Thrift's compact protocol that Parquet's metadata uses.
const (
	thriftTrue   = 1
	thriftFalse  = 2
	thriftI8     = 3
	thriftI64    = 6 // 4 and 5 are the narrower ones, of the same form
	thriftDouble = 7
	thriftBytes  = 8
	thriftList   = 9
	thriftSet    = 10
	thriftStruct = 12
)

// maxDepth is how deep metadata nests before it is refused; Parquet's needs six.
const maxDepth = 16

var errMetadata = errors.New("damaged parquet metadata")

// thrift reads the compact protocol from memory. It allocates nothing: a length
// is believed only where the bytes are there. After a fault every read gives zero.
type thrift struct {
	b     []byte
	at    int
	depth int
	bad   bool
}

func (t *thrift) fail() { t.bad, t.at = true, len(t.b) }

func (t *thrift) byte() byte {
	if t.at >= len(t.b) {
		t.fail()
		return 0
	}
	t.at++
	return t.b[t.at-1]
}

func (t *thrift) uvarint() uint64 {
	v, n := binary.Uvarint(t.b[t.at:])
	if n <= 0 {
		t.fail()
		return 0
	}
	t.at += n
	return v
}

// int reads an integer of any width.
func (t *thrift) int() int64 {
	v := t.uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

// bytes returns a part of the input.
func (t *thrift) bytes() []byte {
	n := t.uvarint()
	if n > uint64(len(t.b)-t.at) {
		t.fail()
		return nil
	}
	t.at += int(n)
	return t.b[t.at-int(n) : t.at]
}

// list returns how many elements follow, of which kind. There are never more than
// bytes left.
func (t *thrift) list() (n int, kind byte) {
	head := t.byte()
	size := uint64(head >> 4)
	if size == 15 {
		size = t.uvarint()
	}
	if size > uint64(len(t.b)-t.at) {
		t.fail()
		return 0, 0
	}
	return int(size), head & 15
}

// structure calls read with the number and the kind of each field; what read
// does not consume, by returning false, is skipped.
func (t *thrift) structure(read func(id int16, kind byte) bool) {
	if t.depth++; t.depth > maxDepth {
		t.fail()
	}
	defer func() { t.depth-- }()
	var id int16
	for !t.bad {
		head := t.byte()
		if t.bad || head == 0 {
			return
		}
		kind := head & 15
		if delta := int16(head >> 4); delta != 0 {
			id += delta
		} else {
			id = int16(t.int())
		}
		if !read(id, kind) {
			t.skip(kind)
		}
	}
}

func (t *thrift) skip(kind byte) {
	switch {
	case kind == thriftTrue || kind == thriftFalse:
	case kind == thriftI8:
		t.byte()
	case kind > thriftI8 && kind <= thriftI64:
		t.uvarint()
	case kind == thriftDouble:
		for range 8 {
			t.byte()
		}
	case kind == thriftBytes:
		t.bytes()
	case kind == thriftList || kind == thriftSet:
		t.skipList()
	case kind == thriftStruct:
		t.structure(func(int16, byte) bool { return false })
	default:
		t.fail() // Parquet has no maps
	}
}

func (t *thrift) skipList() {
	if t.depth++; t.depth > maxDepth {
		t.fail()
	}
	defer func() { t.depth-- }()
	n, kind := t.list()
	for i := 0; i < n && !t.bad; i++ {
		if kind == thriftTrue || kind == thriftFalse {
			t.byte() // in a list each has a byte of its own
			continue
		}
		t.skip(kind)
	}
}
