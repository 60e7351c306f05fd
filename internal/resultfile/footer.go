package resultfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// physical is a Parquet type, as the format numbers them.
type physical int

// The physical types that the files of an attempt use.
const (
	physicalBool   physical = 0
	physicalInt32  physical = 1
	physicalInt64  physical = 2
	physicalDouble physical = 5
	physicalBytes  physical = 6
)

// repetition of a schema element.
const (
	repetitionOptional = 1
	repetitionRepeated = 2
)

// leaf is a column of the file.
type leaf struct {
	path           string // with dots
	kind           physical
	maxDef, maxRep uint8
}

// chunkMeta says where a column of a row group lies.
type chunkMeta struct {
	codec      int64
	values     int64
	start, end int // in the file
}

type rowGroup struct {
	rows   int
	chunks []chunkMeta // one for each leaf
}

// footer is what is needed of a file's metadata.
type footer struct {
	rows   int64
	leaves []leaf
	groups []rowGroup
	notes  map[string][]byte // key-value metadata
}

// Bounds of a footer; a runner's files stay far below.
const (
	maxColumns = 4096
	maxGroups  = 1 << 16
)

// schemaElement is one node of the schema's tree, in depth-first order.
type schemaElement struct {
	kind       physical
	repetition int64
	name       string
	children   int64
}

// parseFooter reads the metadata at the end of a file. Everything in it may be a
// lie: positions and counts are checked against the file.
func parseFooter(content []byte) (footer, error) {
	n := len(content)
	if n < 12 || string(content[:4]) != "PAR1" || string(content[n-4:]) != "PAR1" {
		return footer{}, errors.New("not a parquet file, or cut")
	}
	length := int64(binary.LittleEndian.Uint32(content[n-8:]))
	if length > int64(n-12) {
		return footer{}, errors.New("not a parquet file, or cut")
	}
	t := &thrift{b: content[int64(n)-8-length : n-8]}
	var f footer
	var elements []schemaElement
	var fault error
	t.structure(func(id int16, kind byte) bool {
		switch {
		case id == 2 && kind == thriftList:
			elements = readSchema(t)
		case id == 3 && kind == thriftI64:
			f.rows = t.int()
		case id == 4 && kind == thriftList:
			count, of := t.list()
			if of != thriftStruct || count > maxGroups {
				t.fail()
			}
			for i := 0; i < count && !t.bad; i++ {
				var g rowGroup
				if g, fault = readRowGroup(t, n); fault != nil {
					t.fail()
				}
				f.groups = append(f.groups, g)
			}
		case id == 5 && kind == thriftList:
			f.notes = readNotes(t)
		default:
			return false
		}
		return true
	})
	if fault != nil {
		return footer{}, fault
	}
	if t.bad || len(elements) == 0 {
		return footer{}, errMetadata
	}
	rest, err := f.flatten(elements[1:], elements[0].children, leaf{}, 0)
	if err == nil && len(rest) > 0 {
		err = errMetadata
	}
	if err != nil {
		return footer{}, err
	}
	return f, f.check()
}

// maxNotes bounds the key-value metadata of a file.
const maxNotes = 64

func readNotes(t *thrift) map[string][]byte {
	n, of := t.list()
	if of != thriftStruct || n > maxNotes {
		t.fail()
	}
	notes := map[string][]byte{}
	for i := 0; i < n && !t.bad; i++ {
		var pair [2][]byte
		t.structure(func(id int16, kind byte) bool {
			if id < 1 || id > 2 || kind != thriftBytes {
				return false
			}
			pair[id-1] = t.bytes()
			return true
		})
		notes[string(pair[0])] = pair[1]
	}
	return notes
}

func readSchema(t *thrift) []schemaElement {
	n, of := t.list()
	if of != thriftStruct || n > maxColumns*2 {
		t.fail()
		return nil
	}
	elements := make([]schemaElement, n)
	for i := range elements {
		e := &elements[i]
		e.kind = -1
		t.structure(func(id int16, kind byte) bool {
			switch {
			case id == 1 && kind < thriftI64:
				e.kind = physical(t.int())
			case id == 3 && kind < thriftI64:
				e.repetition = t.int()
			case id == 4 && kind == thriftBytes:
				e.name = string(t.bytes())
			case id == 5 && kind < thriftI64:
				e.children = t.int()
			default:
				return false
			}
			return true
		})
	}
	return elements
}

// flatten appends the leaves among the first n nodes and returns what follows.
func (f *footer) flatten(elements []schemaElement, n int64, parent leaf, depth int) ([]schemaElement, error) {
	if depth > 4 || n < 0 || n > int64(len(elements)) {
		return nil, errMetadata
	}
	for range n {
		if len(elements) == 0 {
			return nil, errMetadata
		}
		e := elements[0]
		elements = elements[1:]
		at := leaf{path: e.name, kind: e.kind, maxDef: parent.maxDef, maxRep: parent.maxRep}
		if parent.path != "" {
			at.path = parent.path + "." + e.name
		}
		if e.repetition == repetitionOptional || e.repetition == repetitionRepeated {
			at.maxDef++
		}
		if e.repetition == repetitionRepeated {
			at.maxRep++
		}
		if e.children == 0 {
			f.leaves = append(f.leaves, at)
			continue
		}
		var err error
		if elements, err = f.flatten(elements, e.children, at, depth+1); err != nil {
			return nil, err
		}
	}
	return elements, nil
}

func readRowGroup(t *thrift, size int) (rowGroup, error) {
	var g rowGroup
	var fault error
	t.structure(func(id int16, kind byte) bool {
		switch {
		case id == 1 && kind == thriftList:
			n, of := t.list()
			if of != thriftStruct || n > maxColumns {
				t.fail()
			}
			for i := 0; i < n && !t.bad; i++ {
				c, err := readChunkMeta(t, size)
				if err != nil {
					fault = err
				}
				g.chunks = append(g.chunks, c)
			}
		case id == 3 && kind == thriftI64:
			rows := t.int()
			if rows < 0 || rows > math.MaxInt32 {
				t.fail()
				return true
			}
			g.rows = int(rows)
		default:
			return false
		}
		return true
	})
	return g, fault
}

func readChunkMeta(t *thrift, size int) (chunkMeta, error) {
	c := chunkMeta{codec: -1, values: -1}
	var length, data, dictionary int64 = -1, -1, 0
	t.structure(func(id int16, kind byte) bool {
		if id != 3 || kind != thriftStruct {
			return false
		}
		t.structure(func(id int16, kind byte) bool {
			var to *int64
			switch id {
			case 4:
				to = &c.codec
			case 5:
				to = &c.values
			case 7:
				to = &length
			case 9:
				to = &data
			case 11:
				to = &dictionary
			default:
				return false
			}
			if kind < thriftI8 || kind > thriftI64 {
				return false
			}
			*to = t.int()
			return true
		})
		return true
	})
	start := data
	if dictionary > 0 {
		start = min(start, dictionary)
	}
	if start < 4 || length < 0 || start > int64(size) || length > int64(size)-start || c.values < 0 || c.values > math.MaxInt32 {
		return c, fmt.Errorf("a column of %d values at byte %d, %d bytes long: %w", c.values, start, length, errMetadata)
	}
	c.start, c.end = int(start), int(start+length)
	return c, nil
}

// check compares the parts of the footer with each other.
func (f *footer) check() error {
	rows := int64(0)
	for _, g := range f.groups {
		rows += int64(g.rows)
		if len(g.chunks) != len(f.leaves) {
			return fmt.Errorf("%d columns of %d: %w", len(g.chunks), len(f.leaves), errMetadata)
		}
		for i, c := range g.chunks {
			if f.leaves[i].maxRep == 0 && c.values != int64(g.rows) {
				return fmt.Errorf("column %s has %d values in %d rows: %w", f.leaves[i].path, c.values, g.rows, errMetadata)
			}
		}
	}
	if rows != f.rows {
		return fmt.Errorf("%d rows in groups, %d in all: %w", rows, f.rows, errMetadata)
	}
	return nil
}
