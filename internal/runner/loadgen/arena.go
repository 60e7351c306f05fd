package loadgen

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mark says that the body was size bytes long once the read at time t was done.
type mark struct {
	t    int64
	size uint32
}

const (
	blockBytes = 4096 - 16
	blockMarks = 63
	pageBytes  = 4096
)

// block is a piece of a packed body; a body is a list of them.
type block struct {
	next *block
	n    int
	data [blockBytes]byte
}

// markBlock is a piece of the list of marks.
type markBlock struct {
	next  *markBlock
	n     int
	marks [blockMarks]mark
}

// arena hands out blocks and takes them back. Its memory lies outside of the
// collected heap, in large pages where the kernel has them, and is touched before
// it is needed: a page fault of a virtual machine costs as much as ten events. The
// lists are only locked when a block is full. The zero value is ready.
type arena struct {
	mu      sync.Mutex
	blocks  *block
	marks   *markBlock
	region  []byte
	used    int // of region
	ready   int // of region, touched
	next    []byte
	regions [][]byte

	held atomic.Int64 // bytes handed out
}

const (
	regionBytes = 8 << 20
	// stockBytes are kept touched ahead of what is used: more than a million packed
	// events take until the next look.
	stockBytes = 2 << 20
)

func (a *arena) block() *block {
	a.held.Add(pageBytes)
	a.mu.Lock()
	defer a.mu.Unlock()
	if b := a.blocks; b != nil {
		a.blocks = b.next
		b.next, b.n = nil, 0
		return b
	}
	// Fresh memory is zero.
	return (*block)(a.carve(unsafe.Sizeof(block{})))
}

func (a *arena) markBlock() *markBlock {
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := a.marks; m != nil {
		a.marks = m.next
		m.next, m.n = nil, 0
		return m
	}
	return (*markBlock)(a.carve(unsafe.Sizeof(markBlock{})))
}

// carve cuts a piece off the region. Pieces hold no pointers but to each other, so
// the collector need not see them.
func (a *arena) carve(size uintptr) unsafe.Pointer {
	if a.used+int(size) > len(a.region) {
		a.region, a.next = a.next, nil
		a.used, a.ready = 0, len(a.region)
		if a.region == nil {
			a.region, a.ready = newRegion(), 0
			a.regions = append(a.regions, a.region)
		}
	}
	p := unsafe.Pointer(&a.region[a.used])
	a.used += int(size)
	return p
}

func newRegion() []byte {
	region, err := unix.Mmap(-1, 0, regionBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return make([]byte, regionBytes)
	}
	_ = unix.Madvise(region, unix.MADV_HUGEPAGE)
	return region
}

// stock touches memory ahead of what is used. It is called now and then by a
// thread that may wait.
func (a *arena) stock() {
	a.mu.Lock()
	if a.region == nil || len(a.region)-a.used < stockBytes {
		if a.next == nil {
			a.mu.Unlock()
			region := newRegion()
			touch(region)
			a.mu.Lock()
			a.next = region
			a.regions = append(a.regions, region)
		}
	}
	region, from := a.region, a.ready
	to := min(len(region), a.used+stockBytes)
	if to > from {
		a.ready = to
	}
	a.mu.Unlock()
	if to > from {
		touch(region[from&^(pageBytes-1) : to])
	}
}

// touch has the kernel back a range with memory, without changing what is there.
func touch(p []byte) {
	if len(p) > 0 {
		_ = unix.Madvise(p, unix.MADV_POPULATE_WRITE)
	}
}

// take puts the blocks of x back.
func (a *arena) take(x *exchange) {
	var bytes int64
	a.mu.Lock()
	for b := x.first; b != nil; {
		next := b.next
		b.next, a.blocks = a.blocks, b
		b = next
		bytes += pageBytes
	}
	for m := x.firstMark; m != nil; {
		next := m.next
		m.next, a.marks = a.marks, m
		m = next
	}
	a.mu.Unlock()
	a.held.Add(-bytes)
	x.first, x.lastBlock, x.firstMark, x.lastMark = nil, nil, nil, nil
	x.pattern, x.prefix, x.suffix = nil, 0, 0
}

// release gives the memory back to the system. No block may be in use.
func (a *arena) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, region := range a.regions {
		_ = unix.Munmap(region) // one from the heap is none of the kernel's
	}
	a.blocks, a.marks, a.region, a.next, a.regions = nil, nil, nil, nil, nil
}
