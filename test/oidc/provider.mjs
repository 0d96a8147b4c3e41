// A real OpenID provider and authorization server (oidc-provider) for the tests. It prints its issuer, and obeys PUT /control:
// {"accounts": {login: claims}, "ttl": seconds of an access token, "rotate": true for new signing keys}.
import { createServer } from 'node:http';
import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { Provider } from 'oidc-provider';

const { clients, resources } = JSON.parse(process.env.PROVIDER);
let accounts = {};
let ttl = 300;
let handle;

// The clock of an access token's life is read at each one; keys are made anew at each rotation.
function start(issuer) {
  const key = (type, alg, options) => ({ ...generateKeyPairSync(type, options).privateKey.export({ format: 'jwk' }), kid: randomUUID(), alg, use: 'sig' });
  const provider = new Provider(issuer, {
    clients,
    jwks: { keys: [key('rsa', 'RS256', { modulusLength: 2048 }), key('ec', 'ES256', { namedCurve: 'P-256' })] },
    cookies: { keys: [randomUUID()] },
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name', 'groups'] },
    findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id, ...accounts[id] }) }),
    ttl: { ClientCredentials: () => ttl, AccessToken: () => ttl, Session: 3600, Grant: 3600, Interaction: 3600, IdToken: 3600 },
    features: {
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (ctx, resource) => {
          if (!resources.includes(resource)) throw new Error('unknown resource');
          return { scope: 'tools:read tools:call', audience: resource, accessTokenFormat: 'jwt', jwt: { sign: { alg: 'ES256' } } };
        },
        useGrantedResource: () => true,
      },
    },
  });
  handle = provider.callback();
}

async function control(req, res) {
  let text = '';
  for await (const chunk of req) text += chunk;
  const order = JSON.parse(text);
  if (order.accounts) accounts = order.accounts;
  if (order.ttl) ttl = order.ttl;
  if (order.rotate) start(server.issuer);
  res.end('{}');
}

const server = createServer((req, res) => (req.url === '/control' ? control(req, res) : handle(req, res)));
server.listen(0, '127.0.0.1', () => {
  server.issuer = `http://127.0.0.1:${server.address().port}`;
  start(server.issuer);
  console.log(`issuer ${server.issuer}`);
});
process.stdin.resume().on('end', () => process.exit()); // the test is gone
