package upstream_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"doorward.dev/doorward/internal/mcp"
	"doorward.dev/doorward/internal/upstream"
)

// BenchmarkDo measures a small call through the pool to a child and to an HTTP server in this process, by 16 callers.
func BenchmarkDo(b *testing.B) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		m, err := mcp.Parse(body, mcp.Limits{})
		if err != nil || m.ID == nil {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, legacyAnswer(m))
	}))
	b.Cleanup(srv.Close)
	for _, cfg := range []upstream.Config{stdioServer("stdio", "plain"), httpServer("http", srv.URL)} {
		b.Run(cfg.ID, func(b *testing.B) {
			p, _ := newPool(b, nil)
			p.Apply([]upstream.Config{cfg})
			up(b, p, cfg.ID)
			b.ReportAllocs()
			b.SetParallelism(8)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := p.Do(b.Context(), callTool(cfg.ID, "echo", legacyClient(""))); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}
