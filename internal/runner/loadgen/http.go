package loadgen

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
)

// maxHeader bounds the header of an answer, and a line of its chunked framing.
const maxHeader = 64 << 10

// framing says how an answer's body ends.
type framing uint8

const (
	framingNone framing = iota
	framingLength
	framingChunked
	framingClose // with the connection
)

// state of the parser.
type replyState uint8

const (
	stateHeader replyState = iota
	stateBody              // left bytes of a body or chunk follow
	stateChunkSize
	stateChunkEnd // the line end behind a chunk
	stateTrailer
	stateClose // the body ends with the connection
	stateDone
)

// reply parses one HTTP/1.x answer as its bytes come in: headers and framing
// only. Its zero value waits for a status line; informational answers (1xx) are
// passed over.
type reply struct {
	state     replyState
	framing   framing
	left      int64  // bytes of the body or chunk still to come
	partial   []byte // header or framing line seen so far
	status    int
	keepAlive bool
	stream    bool // Content-Type: text/event-stream
	mediaType []byte
	encoded   bool // a Content-Encoding that was not asked for
	http10    bool
}

var (
	errHeaderTooLong = errors.New("header longer than 64 KiB")
	errFraming       = errors.New("malformed chunked framing")
	errBodyTooLong   = errors.New("answer longer than 256 MiB")
)

// step takes from p what belongs to the answer, and returns the piece of the body
// that it begins with (empty for framing) and the rest of p. The answer is
// complete when r.state is stateDone; what is behind it stays in rest.
func (r *reply) step(p []byte) (body, rest []byte, err error) {
	switch r.state {
	case stateHeader:
		rest, err = r.header(p)
		return nil, rest, err
	case stateBody:
		n := int64(len(p))
		if n < r.left {
			r.left -= n
			return p, nil, nil
		}
		body, rest = p[:r.left], p[r.left:]
		r.left = 0
		if r.state = stateDone; r.framing == framingChunked {
			r.state = stateChunkEnd
		}
		return body, rest, nil
	case stateClose:
		return p, nil, nil
	case stateChunkSize, stateChunkEnd, stateTrailer:
		rest, err = r.frame(p)
		return nil, rest, err
	case stateDone:
	}
	return nil, p, nil
}

// frame reads one line of the chunked framing.
func (r *reply) frame(p []byte) ([]byte, error) {
	if r.state == stateChunkEnd {
		// At once: what follows a chunk is its line end, and nothing else.
		cr := p[0] == '\r' && len(r.partial) == 0
		if (!cr && p[0] != '\n') || (cr && len(p) > 1 && p[1] != '\n') {
			return nil, errFraming
		}
	}
	line, rest, ok, err := r.cut(p)
	if err != nil || !ok {
		return nil, err
	}
	switch r.state {
	case stateChunkEnd:
		if len(line) > 0 {
			return nil, errFraming
		}
		r.state = stateChunkSize
	case stateChunkSize:
		size, ok := chunkSize(line)
		if !ok {
			return nil, errFraming
		}
		if r.left, r.state = size, stateBody; size == 0 {
			r.state = stateTrailer
		}
	case stateTrailer:
		if len(line) == 0 {
			r.state = stateDone
		}
	case stateHeader, stateBody, stateClose, stateDone:
	}
	r.partial = r.partial[:0]
	return rest, nil
}

// cut takes a line that ends with LF or CRLF. The line is valid until r.partial
// changes.
func (r *reply) cut(p []byte) (line, rest []byte, ok bool, err error) {
	i := bytes.IndexByte(p, '\n')
	if i < 0 {
		if len(r.partial)+len(p) > maxHeader {
			return nil, nil, false, errHeaderTooLong
		}
		r.partial = append(r.partial, p...)
		return nil, nil, false, nil
	}
	line = p[:i]
	if len(r.partial) > 0 {
		r.partial = append(r.partial, line...)
		line = r.partial
	}
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line, p[i+1:], true, nil
}

// chunkSize reads a chunk's size; extensions are ignored.
func chunkSize(line []byte) (int64, bool) {
	var n int64
	for i, b := range line {
		switch {
		case i == 15:
			return 0, false
		case '0' <= b && b <= '9':
			n = n<<4 | int64(b-'0')
		case 'a' <= b && b <= 'f':
			n = n<<4 | int64(b-'a'+10)
		case 'A' <= b && b <= 'F':
			n = n<<4 | int64(b-'A'+10)
		default:
			rest, _, _ := bytes.Cut(line[i:], []byte(";"))
			return n, i > 0 && len(bytes.Trim(rest, " \t")) == 0
		}
	}
	return n, len(line) > 0
}

// header collects the header block and reads it when it is whole.
func (r *reply) header(p []byte) ([]byte, error) {
	var block, rest []byte
	end := headerEnd(p)
	if len(r.partial) > 0 || end < 0 {
		// The block came in pieces: its end may lie across them.
		from := max(0, len(r.partial)-3)
		before := len(r.partial)
		if before+len(p) > maxHeader && (end < 0 || before+end > maxHeader) {
			return nil, errHeaderTooLong
		}
		r.partial = append(r.partial, p...)
		if end = headerEnd(r.partial[from:]); end < 0 {
			return nil, nil
		}
		end += from
		block = r.partial[:end]
		rest = p[end-before:]
	} else {
		if end > maxHeader {
			return nil, errHeaderTooLong
		}
		block, rest = p[:end], p[end:]
	}
	err := r.parse(block)
	r.partial = r.partial[:0]
	return rest, err
}

// headerEnd is the offset behind the empty line that ends a header block, or -1.
func headerEnd(p []byte) int {
	for i := 0; ; {
		j := bytes.IndexByte(p[i:], '\n')
		if j < 0 {
			return -1
		}
		i += j + 1
		switch {
		case i < len(p) && p[i] == '\n':
			return i + 1
		case i+1 < len(p) && p[i] == '\r' && p[i+1] == '\n':
			return i + 2
		}
	}
}

// parse reads a whole header block.
func (r *reply) parse(block []byte) error {
	line, block, _ := bytes.Cut(block, []byte("\n"))
	line = bytes.TrimRight(line, "\r")
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) || line[8] != ' ' || (len(line) > 12 && line[12] != ' ') {
		return fmt.Errorf("not an HTTP/1.1 status line: %.40q", line)
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil || status < 100 || status > 599 {
		return fmt.Errorf("not an HTTP status: %q", line[9:12])
	}
	if status >= 100 && status < 200 {
		if status == 101 {
			return errors.New("the server switches protocols")
		}
		return nil // an informational answer: the real one follows
	}
	r.status = status
	r.http10 = line[7] == '0'
	r.keepAlive = !r.http10
	length := int64(-1)
	chunked := false
	for len(block) > 0 {
		line, rest, _ := bytes.Cut(block, []byte("\n"))
		block = rest
		line = bytes.TrimRight(line, "\r")
		if len(line) == 0 {
			break
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return fmt.Errorf("header line without a colon: %.40q", line)
		}
		value = bytes.TrimSpace(value)
		switch {
		case equalFold(name, "content-length"):
			n, err := strconv.ParseInt(string(value), 10, 63)
			if err != nil || n < 0 || (length >= 0 && length != n) {
				return fmt.Errorf("bad content length %.40q", value)
			}
			length = n
		case equalFold(name, "transfer-encoding"):
			if !equalFold(value, "chunked") {
				return fmt.Errorf("unknown transfer encoding %.40q", value)
			}
			chunked = true
		case equalFold(name, "connection"):
			r.connection(value)
		case equalFold(name, "content-type"):
			media, _, _ := bytes.Cut(value, []byte(";"))
			r.mediaType = append(r.mediaType[:0], bytes.TrimSpace(media)...)
			r.stream = equalFold(r.mediaType, "text/event-stream")
		case equalFold(name, "content-encoding"):
			r.encoded = !equalFold(value, "identity") && len(value) > 0
		}
	}
	r.frameBody(length, chunked)
	return nil
}

func (r *reply) connection(value []byte) {
	for len(value) > 0 {
		token, rest, _ := bytes.Cut(value, []byte(","))
		value = rest
		switch token = bytes.TrimSpace(token); {
		case equalFold(token, "close"):
			r.keepAlive = false
		case equalFold(token, "keep-alive") && r.http10:
			r.keepAlive = true
		}
	}
}

// frameBody decides how the body ends (RFC 9112 section 6.3).
func (r *reply) frameBody(length int64, chunked bool) {
	switch {
	case r.status == 204 || r.status == 304:
		r.framing, r.state = framingNone, stateDone
	case chunked:
		r.framing, r.state = framingChunked, stateChunkSize
		if length >= 0 {
			r.keepAlive = false
		}
	case length == 0:
		r.framing, r.state = framingLength, stateDone
	case length > 0:
		r.framing, r.state, r.left = framingLength, stateBody, length
	default:
		r.framing, r.state, r.keepAlive = framingClose, stateClose, false
	}
}

// equalFold compares with a lower-case name without allocating.
func equalFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}
