package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// limitedLog copies a pipe into a file: the first half of the limit as it comes,
// then the last half when the pipe ends. It always drains the pipe, also when
// the disk is full, so that the writer is never blocked.
type limitedLog struct {
	read, write *os.File
	file        *os.File
	half        int64
	done        chan struct{}

	mu      sync.Mutex
	written int64
	ring    []byte // the last bytes, in order from at
	at      int
	full    bool
	skipped int64 // bytes that are only, or no longer, in the ring
	err     error
}

const tailBytes = 64 << 10

// openLog returns nil where path is "". The methods accept a nil log.
func openLog(path string, limit int64) (*limitedLog, error) {
	if path == "" {
		return nil, nil
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open log: %w", err), file.Close())
	}
	half := max(limit/2, 4<<10)
	return &limitedLog{
		read: read, write: write, file: file, half: half,
		ring: make([]byte, max(half, tailBytes)), done: make(chan struct{}),
	}, nil
}

func (l *limitedLog) abandon() error {
	if l == nil {
		return nil
	}
	return errors.Join(l.read.Close(), l.write.Close(), l.file.Close())
}

// follow starts copying; the program holds the pipe's other end by now.
func (l *limitedLog) follow() {
	if l == nil {
		return
	}
	_ = l.write.Close()
	go func() {
		defer close(l.done)
		buffer := make([]byte, 32<<10)
		for {
			n, err := l.read.Read(buffer)
			l.add(buffer[:n])
			if err != nil {
				break
			}
		}
		_ = l.read.Close()
		l.finish()
	}()
}

func (l *limitedLog) add(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := b; len(rest) > 0; {
		n := copy(l.ring[l.at:], rest)
		rest = rest[n:]
		if l.at += n; l.at == len(l.ring) {
			l.at, l.full = 0, true
		}
	}
	head := b[:max(0, min(int64(len(b)), l.half-l.written))]
	l.skipped += int64(len(b) - len(head))
	l.written += int64(len(head))
	if len(head) > 0 && l.err == nil {
		_, l.err = l.file.Write(head)
	}
}

func (l *limitedLog) last(n int64) []byte {
	tail := l.ring[:l.at]
	if l.full {
		tail = append(append(make([]byte, 0, len(l.ring)), l.ring[l.at:]...), l.ring[:l.at]...)
	}
	return tail[max(0, int64(len(tail))-n):]
}

func (l *limitedLog) finish() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.skipped > 0 && l.err == nil {
		tail := l.last(min(l.half, l.skipped))
		if cut := l.skipped - int64(len(tail)); cut > 0 {
			_, l.err = fmt.Fprintf(l.file, "\n… %d bytes left out …\n", cut)
		}
		if l.err == nil {
			_, l.err = l.file.Write(tail)
		}
	}
	l.err = errors.Join(l.err, l.file.Close())
}

// wait returns when everything was copied, with the first error of the file.
func (l *limitedLog) wait() error {
	if l == nil {
		return nil
	}
	<-l.done
	return l.err
}

func (l *limitedLog) tail(n int) string {
	if l == nil {
		return ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.last(int64(n)))
}

// capture keeps the first bytes of a pipe in memory and drains the rest.
type capture struct {
	read, write *os.File
	limit       int64
	done        chan struct{}
	kept        []byte
	over        bool
}

func newCapture(limit int64) (*capture, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &capture{read: read, write: write, limit: limit, done: make(chan struct{})}, nil
}

func (c *capture) close() error { return errors.Join(c.read.Close(), c.write.Close()) }

func (c *capture) follow() {
	_ = c.write.Close()
	go func() {
		defer close(c.done)
		defer c.read.Close()
		// A failed read of a pipe is its end.
		c.kept, _ = io.ReadAll(io.LimitReader(c.read, c.limit))
		n, _ := io.Copy(io.Discard, c.read)
		c.over = n > 0
	}()
}

func (c *capture) bytes() ([]byte, bool) {
	<-c.done
	return c.kept, c.over
}
