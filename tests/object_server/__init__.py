"""A real server of S3's protocol for tests, moto's, and a proxy that hurts its answers.

No server outlives the process of the tests, however that ends. Every wait has a bound.
"""

from object_server.proxy import S3Proxy
from object_server.server import BUCKET, S3Server, close_shared_server, shared_server

__all__ = ["BUCKET", "S3Proxy", "S3Server", "close_shared_server", "shared_server"]
