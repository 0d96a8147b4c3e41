package app

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"doorward.dev/doorward/internal/audit"
	"doorward.dev/doorward/internal/catalog"
	"doorward.dev/doorward/internal/db"
	"doorward.dev/doorward/internal/fault"
)

// cancelWait is how long cancelled calls get to leave their outcome in the record, and owners to end.
const cancelWait = 5 * time.Second

// Run serves until ctx ends, then shuts down in reverse order: no new calls; running ones finish, or are
// cancelled after the grace time; connections and children are gone; the record is flushed. ready, if
// not nil, is called once calls are served. The error is nil after an orderly end.
func (a *App) Run(ctx context.Context, ready func()) (err error) {
	defer func() { err = errors.Join(err, a.Close()) }()
	tlsConfig, err := a.tls()
	if err != nil {
		return err
	}
	defer paceGC(int64(a.cfg.GC.HeapFloor))()

	failed := make(chan error, 8)
	record := a.own("record", failed, a.audit.Run)
	defer record.end()
	if err := a.writePending(ctx); err != nil {
		return err
	}
	// Another replica may have changed what New loaded, such as made the first keys; what comes after this, watch hears of.
	if err := a.reload(ctx); err != nil {
		return err
	}
	connections := a.own("connections", failed, a.pool.Run)
	defer connections.end()
	a.follow()
	watch := a.own("watch", failed, a.watch)
	defer watch.end()
	teller := a.own("notify", failed, a.notify.Run)
	defer teller.end()
	keeper := a.own("gate", failed, a.gate.Run)
	defer keeper.end()
	doors := a.own("door", failed, a.door.Run)
	defer doors.end()

	web := a.serve(tlsConfig, failed)
	a.log.Info("serving", "address", a.Addr(), "url", a.PublicURL(), "data", a.cfg.Data, "version", Version)
	if ready != nil {
		ready()
	}
	select {
	case <-ctx.Done():
	case err = <-failed:
		a.log.Error("shutting down", "error", err)
	}
	a.log.Info("draining", "grace", a.cfg.ShutdownGrace.String())
	a.door.Drain()
	a.gate.Drain() // callers that wait for a person are answered, and do not use up the grace
	web.end(a.cfg.ShutdownGrace)
	return err
}

// writePending records what New changed before the writer ran.
func (a *App) writePending(ctx context.Context) error {
	for _, e := range a.pending {
		e.At, e.TraceID = time.Now().UnixMicro(), db.NewID()
		if err := a.audit.Write(ctx, e, audit.Process); err != nil {
			return err
		}
	}
	a.pending = nil
	return nil
}

// settled is how long the catalogue must stand still until memory is given back to the system.
const settled = time.Second

// follow connects what is ACTIVE, now and after every change of the catalogue.
func (a *App) follow() {
	ctx := context.Background() // a local read; it is never long
	a.servers.apply(ctx, a.catalog.Snapshot())
	// Reading definitions leaves garbage that the collector, idle below its floor, would keep for ever.
	quiet := time.AfterFunc(settled, debug.FreeOSMemory)
	a.catalog.OnChange(func(s *catalog.Snapshot) {
		a.servers.apply(ctx, s)
		quiet.Reset(settled)
	})
}

// watch loads callers and catalogue anew when the database moved, here or in another process.
func (a *App) watch(ctx context.Context) error {
	return a.db.Watch(ctx, func(ctx context.Context) error {
		err := a.reload(ctx)
		if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
			a.log.Error("cannot load the changed rules; trying again", "error", err)
		}
		return err
	})
}

func (a *App) reload(ctx context.Context) error {
	err := errors.Join(a.auth.Reload(ctx), a.catalog.Reload(ctx))
	a.gate.CancelStopped() // on what could be loaded
	return err
}

// owner is a goroutine with an end.
type owner struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// own starts run. If it returns before it was told to, that is a failure of the whole process.
func (a *App) own(name string, failed chan<- error, run func(context.Context) error) owner {
	ctx, cancel := context.WithCancel(context.Background())
	o := owner{cancel, make(chan struct{})}
	go func() {
		defer close(o.done)
		err := run(ctx)
		if ctx.Err() == nil {
			failed <- fault.Wrap(fault.Internal, err, "%s ended unexpectedly", name)
		} else if err != nil && !errors.Is(err, context.Canceled) {
			a.log.Error("end", "of", name, "error", err)
		}
	}()
	return o
}

func (o owner) end() {
	o.cancel()
	<-o.done
}

// web is the HTTP side: one server a listener.
type web struct {
	servers []*http.Server
	cancel  context.CancelFunc // ends the context of running requests
	done    sync.WaitGroup
	log     *slog.Logger
}

func (a *App) tls() (*tls.Config, error) {
	if a.cfg.TLS.Cert == "" {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(a.cfg.TLS.Cert, a.cfg.TLS.Key)
	if err != nil {
		return nil, fault.Wrap(fault.Config, err, "cannot load tls.cert and tls.key")
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, nil
}

func (a *App) serve(tlsConfig *tls.Config, failed chan<- error) *web {
	ctx, cancel := context.WithCancel(context.Background())
	w := &web{cancel: cancel, log: a.log}
	start := func(l net.Listener, h http.Handler) {
		s := &http.Server{
			Handler: h, BaseContext: func(net.Listener) context.Context { return ctx },
			// No time limit on a whole request or answer: calls and streams are long. The head of a request is not.
			ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
			ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
		}
		w.servers = append(w.servers, s)
		w.done.Go(func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				failed <- fault.Wrap(fault.Internal, err, "listener %s ended", l.Addr())
			}
		})
	}
	if l := a.listener; tlsConfig != nil {
		tlsConfig.NextProtos = []string{"h2", "http/1.1"}
		start(tls.NewListener(l, tlsConfig), a.door.Handler())
	} else {
		start(l, a.door.Handler())
	}
	if a.open != nil {
		start(a.open, a.door.OpenHandler(a.cfg.OpenAgent))
	}
	return w
}

// end stops accepting, waits for running requests for the grace time, cancels the rest and waits for those.
func (w *web) end(grace time.Duration) {
	if !w.shutdown(grace) {
		w.log.Warn("grace time is over; cancelling running calls")
		w.cancel()
		w.shutdown(cancelWait)
	}
	w.cancel()
	for _, s := range w.servers {
		s.Close()
	}
	w.done.Wait()
}

func (w *web) shutdown(wait time.Duration) (idle bool) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	idle = true
	for _, s := range w.servers {
		idle = s.Shutdown(ctx) == nil && idle
	}
	return idle
}
