package mcp

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http/httputil"
	"strconv"
	"strings"
)

// framing is how the body of a response ends.
type framing struct {
	body   io.Reader
	length int64 // -1: not known
	keep   bool  // the connection may be used again after it
	ended  func() bool
}

// readHead reads the head of a response, interim ones skipped.
func readHead(br *bufio.Reader) (*httpReply, *framing, error) {
	for range maxInterim {
		r := &httpReply{}
		f, err := readOneHead(br, r)
		if err != nil {
			return nil, nil, fmt.Errorf("the response is not HTTP/1.1: %w", err)
		}
		if r.status >= 200 {
			return r, f, nil
		}
		if r.status == 101 {
			return nil, nil, errors.New("the server switched protocols unasked")
		}
	}
	return nil, nil, errors.New("the server sent too many interim responses")
}

// fields are those header fields that frame the body.
type fields struct {
	length      int64 // -1: not given
	chunked     bool
	close, keep bool
}

func readOneHead(br *bufio.Reader, r *httpReply) (*framing, error) {
	left := maxHead
	line, err := headLine(br, &left)
	if err != nil {
		return nil, err
	}
	proto, rest, _ := bytes.Cut(line, []byte{' '})
	code, _, _ := bytes.Cut(rest, []byte{' '})
	old := string(proto) == "HTTP/1.0"
	r.status, err = strconv.Atoi(string(code))
	if err != nil || len(code) != 3 || r.status < 100 || !old && string(proto) != "HTTP/1.1" {
		return nil, errors.New("malformed status line")
	}
	fs := fields{length: -1, close: old}
	for {
		if line, err = headLine(br, &left); err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if old && fs.chunked {
				return nil, errors.New("chunked in HTTP/1.0")
			}
			return fs.framing(br, r.status), nil
		}
		if err := fs.add(r, line); err != nil {
			return nil, err
		}
	}
}

func (fs *fields) add(r *httpReply, line []byte) error {
	name, value, ok := bytes.Cut(line, []byte{':'})
	if !ok || !isToken(string(name)) { // also a continuation line, which begins with a space
		return errors.New("malformed header field")
	}
	value = bytes.TrimSpace(value)
	switch {
	case equalFold(name, "content-type"):
		r.contentType = string(value)
	case equalFold(name, "mcp-session-id"):
		r.session = string(value)
	case equalFold(name, "location"):
		r.location = string(value)
	case equalFold(name, "content-length"):
		n, err := strconv.ParseUint(string(value), 10, 62)
		if err != nil || fs.length >= 0 && fs.length != int64(n) {
			return errors.New("malformed Content-Length")
		}
		fs.length = int64(n)
	case equalFold(name, "transfer-encoding"):
		if fs.chunked || !equalFold(value, "chunked") {
			return errors.New("unknown Transfer-Encoding")
		}
		fs.chunked = true
	case equalFold(name, "connection"):
		for opt := range strings.SplitSeq(strings.ToLower(string(value)), ",") {
			switch strings.TrimSpace(opt) {
			case "close":
				fs.close = true
			case "keep-alive":
				fs.keep = true
			}
		}
	}
	return nil
}

func (fs *fields) framing(br *bufio.Reader, status int) *framing {
	keep := !fs.close || fs.keep
	switch {
	case status < 200 || status == 204 || status == 304:
		return &framing{body: bytes.NewReader(nil), keep: keep, ended: func() bool { return true }}
	case fs.chunked:
		b := &chunkedBody{br: br, r: httputil.NewChunkedReader(br)}
		return &framing{body: b, length: -1, keep: keep && fs.length < 0, ended: func() bool { return b.ended }}
	case fs.length >= 0:
		b := &lengthBody{br: br, left: fs.length}
		return &framing{body: b, length: fs.length, keep: keep, ended: func() bool { return b.left == 0 }}
	}
	return &framing{body: br, length: -1, ended: func() bool { return false }}
}

// headLine reads one line of a head; left counts down the bytes a head may have.
func headLine(br *bufio.Reader, left *int) ([]byte, error) {
	line, err := br.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		long := bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) && len(long) <= *left {
			line, err = br.ReadSlice('\n')
			long = append(long, line...)
		}
		line = long
	}
	if *left -= len(line); *left < 0 {
		return nil, errors.New("the head is too large")
	}
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte{'\r'}), nil
}

// lengthBody is a body with Content-Length. One that is cut short is an error, not an end.
type lengthBody struct {
	br   *bufio.Reader
	left int64
}

func (b *lengthBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	n, err := b.br.Read(p[:min(int64(len(p)), b.left)])
	if b.left -= int64(n); err == io.EOF && b.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// chunkedBody reads on to the end of the trailer, so that the connection can be used again.
type chunkedBody struct {
	br    *bufio.Reader
	r     io.Reader
	ended bool
}

func (b *chunkedBody) Read(p []byte) (int, error) {
	if b.ended {
		return 0, io.EOF
	}
	n, err := b.r.Read(p)
	if err != io.EOF {
		return n, err
	}
	for left := maxHead; ; {
		line, lerr := headLine(b.br, &left)
		if lerr != nil {
			return n, lerr
		}
		if len(line) == 0 {
			b.ended = true
			return n, io.EOF
		}
	}
}
