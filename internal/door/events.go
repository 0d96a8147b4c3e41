package door

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// readEvents gives the data of every event of a stream to fn until the stream ends. Comments, names and ids mean nothing here.
func readEvents(r io.Reader, fn func([]byte)) {
	br := bufio.NewReaderSize(r, 32<<10)
	var data []byte
	some := false
	for {
		line, err := readEventLine(br)
		if err != nil {
			return // an event without its end is none
		}
		switch {
		case len(line) == 0:
			if some && len(bytes.TrimSpace(data)) > 0 {
				fn(data)
			}
			data, some = nil, false
		case bytes.HasPrefix(line, []byte("data:")):
			if some {
				data = append(data, '\n')
			}
			data, some = append(data, bytes.TrimPrefix(line[5:], []byte(" "))...), true
			if len(data) > 4*stdioMessage {
				return
			}
		}
	}
}

func readEventLine(br *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := br.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			return bytes.TrimRight(line, "\r\n"), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) || len(line) > 4*stdioMessage {
			return nil, io.ErrUnexpectedEOF
		}
	}
}
