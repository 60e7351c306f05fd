package devcluster

import (
	"errors"
	"fmt"
	"net"
	"strconv"
)

// portBlock is a reserved block of TCP ports. The reservation is a socket with
// an abstract name: it holds for every user of the network namespace, as ports
// do, and ends with the process at the latest, so that nothing can be left
// behind. It is kept until the daemons listen on the ports themselves.
type portBlock struct {
	base int
	hold net.Listener
}

func (b *portBlock) release() {
	if b != nil && b.hold != nil {
		_ = b.hold.Close()
	}
}

// reservePorts takes the block at want or, with want 0, the first free one.
// preferred is tried before the others.
func reservePorts(want, preferred, count int) (*portBlock, error) {
	if want != 0 {
		b, err := reserveBlock(want, count)
		if err != nil {
			return nil, fmt.Errorf("base port %d: %w", want, err)
		}
		return b, nil
	}
	if preferred != 0 {
		if b, err := reserveBlock(preferred, count); err == nil {
			return b, nil
		}
	}
	for base := firstPort; base+portStride <= lastPort; base += portStride {
		if b, err := reserveBlock(base, count); err == nil {
			return b, nil
		}
	}
	return nil, fmt.Errorf("no free block of %d ports between %d and %d", count, firstPort, lastPort)
}

func reserveBlock(base, count int) (*portBlock, error) {
	// Blocks that overlap without being equal exclude each other by the ports;
	// equal ones, the usual case, by this name.
	hold, err := net.Listen("unix", "@sbench-dev-ports-"+strconv.Itoa(base))
	if err != nil {
		return nil, errors.New("another cluster is coming up on these ports")
	}
	for p := base; p < base+count; p++ {
		l, err := net.Listen("tcp4", ":"+strconv.Itoa(p))
		if err != nil {
			_ = hold.Close()
			return nil, fmt.Errorf("port %d is taken", p)
		}
		_ = l.Close()
	}
	return &portBlock{base: base, hold: hold}, nil
}
