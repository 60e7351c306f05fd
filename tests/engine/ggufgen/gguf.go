package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// Value and tensor types of GGUF version 3.
const (
	typeUint32, typeInt32, typeFloat32, typeBool, typeString, typeArray = 4, 5, 6, 7, 8, 9

	tensorF32, tensorF16 = 0, 1

	alignment = 32
)

// keyValue is one metadata entry: uint32, float32, bool, string, []string or
// []int32.
type keyValue struct {
	key   string
	value any
}

// tensor is written element by element, first dimension fastest; at is called
// once per element, in order.
type tensor struct {
	name string
	dims []int
	kind uint32
	at   func(i int) float32
}

func (t tensor) elements() int {
	n := 1
	for _, d := range t.dims {
		n *= d
	}
	return n
}

func (t tensor) size() int {
	if t.kind == tensorF16 {
		return 2 * t.elements()
	}
	return 4 * t.elements()
}

// encoder writes little-endian values and keeps the first error.
type encoder struct {
	out *bufio.Writer
	n   int64
	err error
}

func (e *encoder) bytes(p []byte) {
	if e.err == nil {
		_, e.err = e.out.Write(p)
		e.n += int64(len(p))
	}
}

func (e *encoder) u32(v uint32) { e.bytes(binary.LittleEndian.AppendUint32(nil, v)) }
func (e *encoder) u64(v uint64) { e.bytes(binary.LittleEndian.AppendUint64(nil, v)) }

func (e *encoder) string(s string) {
	e.u64(uint64(len(s)))
	e.bytes([]byte(s))
}

func (e *encoder) align() {
	for e.n%alignment != 0 && e.err == nil {
		e.bytes([]byte{0})
	}
}

func (e *encoder) value(v any) {
	switch v := v.(type) {
	case uint32:
		e.u32(typeUint32)
		e.u32(v)
	case float32:
		e.u32(typeFloat32)
		e.u32(math.Float32bits(v))
	case bool:
		e.u32(typeBool)
		if v {
			e.bytes([]byte{1})
		} else {
			e.bytes([]byte{0})
		}
	case string:
		e.u32(typeString)
		e.string(v)
	case []string:
		e.u32(typeArray)
		e.u32(typeString)
		e.u64(uint64(len(v)))
		for _, s := range v {
			e.string(s)
		}
	case []int32:
		e.u32(typeArray)
		e.u32(typeInt32)
		e.u64(uint64(len(v)))
		for _, n := range v {
			e.u32(uint32(n))
		}
	default:
		e.err = fmt.Errorf("metadata of type %T", v)
	}
}

// writeGGUF writes a whole model file.
func writeGGUF(w io.Writer, metadata []keyValue, tensors []tensor) error {
	e := &encoder{out: bufio.NewWriterSize(w, 1<<20)}
	e.bytes([]byte("GGUF"))
	e.u32(3)
	e.u64(uint64(len(tensors)))
	e.u64(uint64(len(metadata)))
	for _, m := range metadata {
		e.string(m.key)
		e.value(m.value)
	}
	offset := 0
	for _, t := range tensors {
		e.string(t.name)
		e.u32(uint32(len(t.dims)))
		for _, d := range t.dims {
			e.u64(uint64(d))
		}
		e.u32(t.kind)
		e.u64(uint64(offset))
		offset += (t.size() + alignment - 1) / alignment * alignment
	}
	e.align()
	for _, t := range tensors {
		for i := range t.elements() {
			v := t.at(i)
			if t.kind == tensorF16 {
				h := half(v)
				e.bytes([]byte{byte(h), byte(h >> 8)})
				continue
			}
			e.u32(math.Float32bits(v))
		}
		e.align()
	}
	if e.err != nil {
		return e.err
	}
	return e.out.Flush()
}

// half rounds a finite float32 to IEEE binary16, ties to even; what is too
// large becomes the largest finite value.
func half(f float32) uint16 {
	bits := math.Float32bits(f)
	sign := uint16(bits>>16) & 0x8000
	exponent := int32(bits>>23&0xff) - 127 + 15
	mantissa := bits & 0x7fffff
	if exponent >= 31 {
		return sign | 0x7bff
	}
	if exponent <= 0 { // subnormal
		if exponent < -10 {
			return sign
		}
		mantissa |= 0x800000
		shift := uint32(14 - exponent)
		rounded := mantissa >> shift
		rest, tie := mantissa&(1<<shift-1), uint32(1)<<(shift-1)
		if rest > tie || (rest == tie && rounded&1 == 1) {
			rounded++
		}
		return sign | uint16(rounded)
	}
	rounded := uint32(exponent)<<10 | mantissa>>13
	if rest := mantissa & 0x1fff; rest > 0x1000 || (rest == 0x1000 && rounded&1 == 1) {
		rounded++
	}
	if rounded >= 0x7c00 {
		return sign | 0x7bff
	}
	return sign | uint16(rounded)
}
