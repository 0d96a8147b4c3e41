// Command upstream is a small MCP server for benchmarks. Its tools do no work and its handlers are written by hand, so that what is
// measured around it is the cost of what stands in front.
//
//	upstream -http 127.0.0.1:9000 -tools 10    streamable HTTP on /mcp
//	upstream -stdio                            stdio
//
// Tools: echo {text} returns its text (it reads); create_note {text} does the same under a name that writes;
// add {a, b} returns the sum; -tools N adds N dummy tools with schemas of realistic size (about 1.2 KB each).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("upstream: ")
	addr := flag.String("http", "", "listen address, such as 127.0.0.1:9000")
	stdio := flag.Bool("stdio", false, "serve on stdin and stdout")
	tools := flag.Int("tools", 0, "number of dummy tools to add")
	flag.Parse()
	h := newRawHandler(*tools)
	switch {
	case *stdio:
		serveStdio(h)
	case *addr != "":
		serveHTTP(*addr, h)
	default:
		log.Fatal("one of -http or -stdio is needed")
	}
}

func serveHTTP(addr string, h http.Handler) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	mux := http.NewServeMux()
	mux.Handle("/mcp", h)
	s := &http.Server{Addr: addr, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		<-ctx.Done()
		s.Close()
	}()
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

// serveStdio answers line by line. Output is flushed when no further request waits, so that a busy pipe is not a system call for
// each answer.
func serveStdio(h *rawHandler) {
	in, out := bufio.NewReaderSize(os.Stdin, 1<<20), bufio.NewWriterSize(os.Stdout, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var req rawRequest
		if json.Unmarshal(line, &req) != nil || len(req.ID) == 0 {
			continue
		}
		result, rpcErr := h.answer(&req)
		if json.NewEncoder(out).Encode(response(req.ID, result, rpcErr)) != nil {
			return
		}
		if in.Buffered() == 0 && out.Flush() != nil {
			return
		}
	}
}
