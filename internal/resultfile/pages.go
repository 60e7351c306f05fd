package resultfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// A file on the shared file system may have been written to exhaust whoever reads
// it: a page of a few bytes can claim, or unpack to, gigabytes. So reading is
// bounded from the first byte: nothing is allocated that the file's size does not
// justify, within the ratio that a runner's files stay far below.
const (
	// decodedSlack and decodedRatio bound what a file may unpack to, rows included.
	decodedSlack = 16 << 20
	decodedRatio = 64
	// maxDecoded bounds it whatever the file's size.
	maxDecoded = 1 << 30
	// maxPage bounds one page.
	maxPage = 64 << 20
)

// ErrBounds says that a file would take more memory than its size justifies.
var ErrBounds = errors.New("the file unpacks to more than it may")

// The codecs and encodings that a runner writes.
const (
	codecNone = 0
	codecZstd = 6

	encodingPlain       = 0
	encodingRLE         = 3
	encodingDelta       = 5
	encodingDeltaLength = 6
	encodingDictionary  = 8

	pageDictionary = 2
	pageDataV2     = 3
)

var errPage = errors.New("damaged parquet page")

// zstdDecoders are decoders that stop at maxPage bytes.
var zstdDecoders = sync.Pool{New: func() any {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxPage), zstd.WithDecoderLowmem(true))
	if err != nil {
		panic(err) // the options are constants
	}
	return d
}}

// pageHeader is what is needed of a page's header.
type pageHeader struct {
	kind           int64
	unpacked, size int64 // bytes
	values         int64
	encoding       int64
	defLen, repLen int64
	compressed     bool
}

func readPageHeader(t *thrift) (pageHeader, error) {
	h := pageHeader{kind: -1, unpacked: -1, size: -1, values: -1, encoding: -1, compressed: true}
	read := func(to ...*int64) func(id int16, kind byte) bool {
		return func(id int16, kind byte) bool {
			if id < 1 || int(id) > len(to) || to[id-1] == nil || kind < thriftI8 || kind > thriftI64 {
				return false
			}
			*to[id-1] = t.int()
			return true
		}
	}
	top := read(&h.kind, &h.unpacked, &h.size)
	dictionary := read(&h.values, &h.encoding)
	data := read(&h.values, nil, nil, &h.encoding, &h.defLen, &h.repLen)
	t.structure(func(id int16, kind byte) bool {
		switch {
		case id == 7 && kind == thriftStruct:
			t.structure(dictionary)
		case id == 8 && kind == thriftStruct:
			t.structure(func(id int16, kind byte) bool {
				if id == 7 && (kind == thriftTrue || kind == thriftFalse) {
					h.compressed = kind == thriftTrue
					return true
				}
				return data(id, kind)
			})
		default:
			return top(id, kind)
		}
		return true
	})
	if t.bad || h.size < 0 || h.unpacked < 0 || h.values < 0 || h.defLen < 0 || h.repLen < 0 || h.defLen+h.repLen > h.size {
		return h, errPage
	}
	return h, nil
}

// budget is how many bytes may still be allocated for a file.
type budget struct{ left int64 }

func budgetOf(size int64) *budget {
	return &budget{min(maxDecoded, decodedSlack+decodedRatio*size)}
}

func (b *budget) take(n int64) error {
	if n < 0 || n > b.left {
		return ErrBounds
	}
	b.left -= n
	return nil
}

// values are a column of a row group: levels where the leaf has some, and what is
// not null in the one slice that its type has.
type values struct {
	n        int // of levels, or of values where there are none
	rep, def []uint8
	ints     []int64
	floats   []float64
	bools    []bool
	texts    []string
}

// pages reads the pages of a column in turn.
type pages struct {
	content    []byte
	leaf       leaf
	codec      int64
	budget     *budget
	dictionary []string
	buffer     []byte // of a page's bytes, used again
}

// column reads a whole column of a row group.
func (f *columnFile) column(g rowGroup, i int) (values, error) {
	c, l := g.chunks[i], f.leaves[i]
	p := pages{content: f.content[c.start:c.end], leaf: l, codec: c.codec, budget: f.budget, buffer: f.buffer}
	var v values
	var err error
	for at := 0; int64(v.n) < c.values && err == nil; {
		if at >= len(p.content) {
			return v, fmt.Errorf("column %s has %d values of %d: %w", l.path, v.n, c.values, errPage)
		}
		at, err = p.next(&v, at, c.values)
	}
	f.buffer = p.buffer
	if err != nil {
		return v, fmt.Errorf("column %s: %w", l.path, err)
	}
	return v, nil
}

// next reads the page at the position and returns where the following one is.
func (p *pages) next(v *values, at int, limit int64) (int, error) {
	t := &thrift{b: p.content[at:]}
	h, err := readPageHeader(t)
	if err != nil {
		return 0, err
	}
	start := at + t.at
	if h.size > int64(len(p.content)-start) {
		return 0, errPage
	}
	body, end := p.content[start:start+int(h.size)], start+int(h.size)
	switch h.kind {
	case pageDictionary:
		return end, p.readDictionary(h, body)
	case pageDataV2:
		if h.values == 0 || h.values > limit-int64(v.n) {
			return 0, errPage
		}
		return end, p.readData(v, h, body)
	}
	return 0, fmt.Errorf("a page of type %d: %w", h.kind, errPage)
}

// unpack returns the bytes of a page, of which the header says how many there
// are. They are valid until the next page.
func (p *pages) unpack(body []byte, size int64, compressed bool) ([]byte, error) {
	if !compressed || p.codec == codecNone {
		if int64(len(body)) != size {
			return nil, errPage
		}
		return body, nil
	}
	if p.codec != codecZstd {
		return nil, fmt.Errorf("compressed by codec %d, which no runner uses", p.codec)
	}
	if size > maxPage {
		return nil, ErrBounds
	}
	if int64(cap(p.buffer)) < size {
		if err := p.budget.take(size); err != nil {
			return nil, err
		}
		p.buffer = make([]byte, 0, size)
	}
	d := zstdDecoders.Get().(*zstd.Decoder)
	defer zstdDecoders.Put(d)
	out, err := d.DecodeAll(body, p.buffer[:0])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errPage, err)
	}
	if int64(len(out)) != size {
		return nil, fmt.Errorf("%d bytes, %d expected: %w", len(out), size, errPage)
	}
	return out, nil
}

func (p *pages) readDictionary(h pageHeader, body []byte) error {
	if p.leaf.kind != physicalBytes || h.encoding != encodingPlain || p.dictionary != nil {
		return errPage
	}
	data, err := p.unpack(body, h.unpacked, true)
	if err != nil {
		return err
	}
	if h.values > int64(len(data)/4) {
		return errPage
	}
	if err := p.budget.take(h.values*16 + int64(len(data))); err != nil {
		return err
	}
	p.dictionary, err = plainTexts(data, int(h.values))
	return err
}

func (p *pages) readData(v *values, h pageHeader, body []byte) error {
	n := int(h.values)
	if err := p.budget.take(h.values * 16); err != nil {
		return err
	}
	rep, def, body := body[:h.repLen], body[h.repLen:h.repLen+h.defLen], body[h.repLen+h.defLen:]
	var err error
	if p.leaf.maxRep > 0 {
		if v.rep, err = appendLevels(v.rep, rep, n, p.leaf.maxRep); err != nil {
			return err
		}
	}
	present := n
	if p.leaf.maxDef > 0 {
		old := len(v.def)
		if v.def, err = appendLevels(v.def, def, n, p.leaf.maxDef); err != nil {
			return err
		}
		present = 0
		for _, d := range v.def[old:] {
			if d == p.leaf.maxDef {
				present++
			}
		}
	}
	v.n += n
	if present == 0 {
		return nil
	}
	data, err := p.unpack(body, h.unpacked-h.defLen-h.repLen, h.compressed)
	if err != nil {
		return err
	}
	return p.decode(v, h.encoding, data, present)
}

// decode appends n values to the slice of the leaf's type.
func (p *pages) decode(v *values, encoding int64, data []byte, n int) (err error) {
	switch kind := p.leaf.kind; {
	case kind == physicalInt64 && encoding == encodingPlain:
		if len(data) != 8*n {
			return errPage
		}
		v.ints = slices.Grow(v.ints, n)
		for i := range n {
			v.ints = append(v.ints, int64(binary.LittleEndian.Uint64(data[8*i:])))
		}
	case kind == physicalInt32 && encoding == encodingPlain:
		if len(data) != 4*n {
			return errPage
		}
		v.ints = slices.Grow(v.ints, n)
		for i := range n {
			v.ints = append(v.ints, int64(int32(binary.LittleEndian.Uint32(data[4*i:]))))
		}
	case (kind == physicalInt64 || kind == physicalInt32) && encoding == encodingDelta:
		v.ints, _, err = appendDeltas(slices.Grow(v.ints, n), data, n, kind == physicalInt32)
	case kind == physicalDouble && encoding == encodingPlain:
		if len(data) != 8*n {
			return errPage
		}
		for i := range n {
			v.floats = append(v.floats, math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:])))
		}
	case kind == physicalBool && encoding == encodingPlain:
		if len(data) != (n+7)/8 {
			return errPage
		}
		for i := range n {
			v.bools = append(v.bools, data[i/8]>>(i%8)&1 == 1)
		}
	case kind == physicalBytes && encoding == encodingPlain:
		if err := p.budget.take(int64(len(data))); err != nil {
			return err
		}
		texts, err := plainTexts(data, n)
		v.texts = append(v.texts, texts...)
		return err
	case kind == physicalBytes && encoding == encodingDeltaLength:
		if err := p.budget.take(int64(len(data)) + 8*int64(n)); err != nil {
			return err
		}
		v.texts, err = appendDeltaTexts(v.texts, data, n)
	case kind == physicalBytes && encoding == encodingDictionary:
		v.texts, err = appendIndexed(v.texts, data, n, p.dictionary)
	default:
		return fmt.Errorf("values of type %d in encoding %d, which no runner writes", kind, encoding)
	}
	return err
}
