package app_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"doorward.dev/doorward/internal/app"
	"doorward.dev/doorward/internal/config"
)

func TestServesTLS(t *testing.T) {
	cert, key := filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
	roots := selfSigned(t, cert, key)
	s := start(t, "", map[string]string{"tls.cert": cert, "tls.key": key})
	if !strings.HasPrefix(s.PublicURL(), "https://") {
		t.Fatalf("url = %s", s.PublicURL())
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Get(s.PublicURL() + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 200 || res.ProtoMajor != 2 {
		t.Errorf("%s %s", res.Proto, res.Status)
	}
	plain, err := http.Get("http://" + s.Addr() + "/readyz")
	if err == nil {
		plain.Body.Close()
		if plain.StatusCode == 200 {
			t.Error("it answers without TLS, too")
		}
	}
}

func selfSigned(t *testing.T, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return pool
}

// Every line of the log goes through the redactor, whatever part of it holds the secret.
func TestLogHidesSecrets(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out lockedBuffer
		log := app.NewLogger(&out, config.Log{Level: "info", Format: format})
		log.Redactor.Set("test", []string{`marker "secret" 4711`})
		log.Info(`message with marker "secret" 4711`, "value", `marker "secret" 4711`, "error", io.EOF)
		log.Debug("not written")
		if got := out.String(); strings.Contains(got, "marker") || !strings.Contains(got, "[redacted]") || strings.Contains(got, "not written") {
			t.Errorf("%s: %s", format, got)
		}
	}
}
