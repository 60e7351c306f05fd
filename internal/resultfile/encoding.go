package resultfile

import (
	"encoding/binary"
	"math/bits"
)

// The encodings of Parquet that a runner's files use. Every function takes how
// many values there must be, and fails where there are more or fewer.

// plainTexts reads texts that each have their length before them. They share one
// copy of the data.
func plainTexts(data []byte, n int) ([]string, error) {
	all := string(data)
	texts := make([]string, n)
	at := 0
	for i := range texts {
		if len(data)-at < 4 {
			return nil, errPage
		}
		length := int64(binary.LittleEndian.Uint32(data[at:]))
		at += 4
		if length > int64(len(data)-at) {
			return nil, errPage
		}
		texts[i] = all[at : at+int(length)]
		at += int(length)
	}
	if at != len(data) {
		return nil, errPage
	}
	return texts, nil
}

// appendDeltaTexts reads texts whose lengths stand together before them.
func appendDeltaTexts(to []string, data []byte, n int) ([]string, error) {
	lengths, rest, err := appendDeltas(make([]int64, 0, n), data, n, true)
	if err != nil {
		return to, err
	}
	all := string(rest)
	for _, l := range lengths {
		if l < 0 || l > int64(len(all)) {
			return to, errPage
		}
		to, all = append(to, all[:l]), all[l:]
	}
	if all != "" {
		return to, errPage
	}
	return to, nil
}

// appendIndexed reads the numbers of texts in a dictionary.
func appendIndexed(to []string, data []byte, n int, dictionary []string) ([]string, error) {
	if len(data) == 0 {
		return to, errPage
	}
	width := uint(data[0])
	if width > 32 {
		return to, errPage
	}
	bad := false
	err := runs(data[1:], n, width, func(value uint64, count int) {
		if value >= uint64(len(dictionary)) {
			bad = true
			return
		}
		for range count {
			to = append(to, dictionary[value])
		}
	})
	if bad {
		err = errPage
	}
	return to, err
}

// appendLevels reads repetition or definition levels, none above the largest.
func appendLevels(to []uint8, data []byte, n int, largest uint8) ([]uint8, error) {
	bad := false
	err := runs(data, n, uint(bits.Len8(largest)), func(value uint64, count int) {
		if value > uint64(largest) {
			bad = true
			return
		}
		for range count {
			to = append(to, uint8(value))
		}
	})
	if bad {
		err = errPage
	}
	return to, err
}

// runs reads the hybrid of run lengths and packed bits, n values in all, and
// hands each run over.
func runs(data []byte, n int, width uint, each func(value uint64, count int)) error {
	size := int(width+7) / 8
	for n > 0 {
		head, used := binary.Uvarint(data)
		if used <= 0 {
			return errPage
		}
		data = data[used:]
		if head&1 == 0 {
			if head>>1 == 0 || len(data) < size {
				return errPage
			}
			var value uint64
			for i := range size {
				value |= uint64(data[i]) << (8 * i)
			}
			data = data[size:]
			count := int(min(head>>1, uint64(n)))
			each(value, count)
			n -= count
			continue
		}
		groups := head >> 1
		if groups == 0 || groups > uint64(len(data)) && width > 0 || groups > uint64(n) {
			return errPage
		}
		length := int(groups) * int(width)
		if length > len(data) {
			return errPage
		}
		count := min(int(groups)*8, n)
		packed := packed{b: data[:length], width: width}
		for range count {
			each(packed.next(), 1)
		}
		data, n = data[length:], n-count
	}
	return nil
}

// packed reads numbers of width bits each, the lowest bit first. Beyond the end
// it reads zeros.
type packed struct {
	b     []byte
	bit   uint
	width uint
}

func (p *packed) next() uint64 {
	if i := p.bit / 8; p.width <= 56 && i+8 <= uint(len(p.b)) {
		v := binary.LittleEndian.Uint64(p.b[i:]) >> (p.bit % 8) & (1<<p.width - 1)
		p.bit += p.width
		return v
	}
	var v uint64
	for got := uint(0); got < p.width; {
		i, shift := p.bit/8, p.bit%8
		if i >= uint(len(p.b)) {
			break
		}
		take := min(8-shift, p.width-got)
		v |= uint64(p.b[i]>>shift) & (1<<take - 1) << got
		got += take
		p.bit += take
	}
	return v
}

// appendDeltas reads n integers in the delta encoding, wrapped to 32 bits where
// narrow, and returns what follows them.
func appendDeltas(to []int64, data []byte, n int, narrow bool) ([]int64, []byte, error) {
	if n == 0 {
		return to, data, nil
	}
	t := &thrift{b: data} // for its variable-length integers
	block, minis, total := t.uvarint(), t.uvarint(), t.uvarint()
	value := t.int()
	if t.bad || total != uint64(n) || minis == 0 || minis > 1<<10 || block == 0 || block > 1<<20 || block%(minis*8) != 0 {
		return to, nil, errPage
	}
	wrap := func(v int64) int64 {
		if narrow {
			return int64(int32(v))
		}
		return v
	}
	per := int(block / minis)
	to = append(to, wrap(value))
	for n--; n > 0; {
		least := t.int()
		if t.bad || len(data)-t.at < int(minis) {
			return to, nil, errPage
		}
		widths := data[t.at : t.at+int(minis)]
		t.at += int(minis)
		for _, width := range widths {
			if n == 0 {
				break
			}
			length := per / 8 * int(width)
			if width > 64 || length > len(data)-t.at {
				return to, nil, errPage
			}
			p := packed{b: data[t.at : t.at+length], width: uint(width)}
			for range min(per, n) {
				value += least + int64(p.next())
				to = append(to, wrap(value))
			}
			n -= min(per, n)
			t.at += length
		}
	}
	return to, data[t.at:], nil
}
