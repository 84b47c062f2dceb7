"""Vectors for the tokens of a vocabulary, read from text files: a token and its numbers on each line.

    vectors = mx.contrib.text.embedding.CustomEmbedding("vectors.txt")
    vectors.get_vecs_by_tokens(["hello", "world"])      # (2, vec_len)

GloVe's and fastText's files are read from `embedding_root`; nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ... import ndarray as nd
from ...absent import module_getattr
from ...base import value_text
from ...ndarray import NDArray
from ...registry import get_create_func, get_register_func, get_registry
from .token_embedding import _TokenEmbedding, check_vocabulary
from .vocab import Vocabulary

__all__ = ["CompositeEmbedding", "CustomEmbedding", "FastText", "GloVe", "create", "get_pretrained_file_names"]
__all__ += ["register"]

C = TypeVar("C", bound=type)
EMBEDDING_ROOT = "~/.mxnet/embeddings"
"""The folder that MXNet keeps downloaded files in."""
_GLOVE = (
    "42B.300d 6B.50d 6B.100d 6B.200d 6B.300d 840B.300d twitter.27B.25d twitter.27B.50d twitter.27B.100d "
    "twitter.27B.200d"
)
_FAST_TEXT_LANGUAGES = (
    "aa ab ace ady af ak als am ang an arc ar arz ast as av ay azb az bar bat_smg ba bcl be bg bh bi bjn bm bn "
    "bo bpy br bs bug bxr ca cbk_zam cdo ceb ce cho chr ch chy ckb co crh cr csb cs cu cv cy da de diq dsb dv "
    "dz ee el eml en eo es et eu ext fa ff fiu_vro fi fj fo frp frr fr fur fy gag gan ga gd glk gl gn gom got "
    "gu gv hak ha haw he hif hi ho hr hsb ht hu hy hz ia id ie ig ii ik ilo io is it iu jam ja jbo jv kaa kab "
    "ka kbd kg ki kj kk kl km kn koi ko krc kr ksh ks ku kv kw ky lad la lbe lb lez lg lij li lmo ln lo lrc "
    "ltg lt lv mai map_bms mdf mg mhr mh min mi mk ml mn mo mrj mr ms mt mus mwl my myv mzn nah nap na nds_nl "
    "nds ne new ng nl nn no nov nrm nso nv ny oc olo om or os pag pam pap pa pcd pdc pfl pih pi pl pms pnb pnt "
    "ps pt qu rm rmy rn roa_rup roa_tara ro rue ru rw sah sa scn sco sc sd se sg sh simple si sk sl sm sn so "
    "sq srn sr ss stq st su sv sw szl ta tcy tet te tg th ti tk tl tn to tpi tr ts tt tum tw ty tyv udm ug uk "
    "ur uz vec vep ve vi vls vo war wa wo wuu xal xh xmf yi yo za zea zh_classical zh_min_nan zh zh_yue zu"
)
_FAST_TEXT_ALIGNED = "ar bg ca cs da de el en es et fi fr he hr hu id it mk nl no pl pt ro ru sk sl sv tr uk vi"
"""Languages whose vectors share one space."""


class _LocalEmbedding(_TokenEmbedding):
    """Vectors of a known name, from a file of that name under `embedding_root`, in a folder of the class's name."""

    def _read(
        self,
        pretrained_file_name: str,
        embedding_root: str,
        init_unknown_vec: Callable[..., NDArray],
        vocabulary: Vocabulary | None,
    ) -> None:
        self._check_pretrained_file_names(pretrained_file_name)
        path = Path(embedding_root).expanduser() / type(self).__name__.lower() / pretrained_file_name
        if not path.is_file():
            raise ValueError(
                f"{type(self).__name__}: expected the file {str(path)!r}, which is not there: opbox downloads nothing, "
                "so put it there, or read a file of another place with CustomEmbedding"
            )
        self._load_embedding(str(path), " ", init_unknown_vec)
        self._build_embedding_for_vocabulary(vocabulary)


def register(embedding_cls: C) -> C:
    """Decorator: `create` knows the class by its name."""
    registered: C = get_register_func(_TokenEmbedding, "token embedding")(embedding_cls)
    return registered


def create(embedding_name: str, **kwargs: Any) -> Any:
    """Make an embedding of a registered class.

    Args:
        embedding_name: the class's name, in any case: "glove", "fasttext".
        kwargs: what the class takes.

    Raises:
        AssertionError: there is no such class.
    """
    return get_create_func(_TokenEmbedding, "token embedding")(embedding_name, **kwargs)


def get_pretrained_file_names(embedding_name: str | None = None) -> Any:
    """The names of the files that an embedding reads; a dict of those of every class by default.

    Raises:
        KeyError: there is no such class.
    """
    classes: dict[str, type[Any]] = get_registry(_TokenEmbedding)
    if embedding_name is None:
        return {name: list(known.pretrained_file_name_sha1) for name, known in classes.items()}
    if embedding_name not in classes:
        raise KeyError(f"embedding_name: expected one of {', '.join(classes)}, got {embedding_name!r}")
    return list(classes[embedding_name].pretrained_file_name_sha1)


@register
class GloVe(_LocalEmbedding):
    """The vectors of GloVe (Pennington, Socher and Manning, 2014), from a file on this machine.

    Args:
        pretrained_file_name: the file, in the folder `glove` of `embedding_root`.
        embedding_root: the folder of embeddings.
        init_unknown_vec: makes the vector of unknown tokens, called with `shape=vec_len`.
        vocabulary: have its tokens alone.
        kwargs: `unknown_token` and `reserved_tokens` of `Vocabulary`.

    Raises:
        KeyError: GloVe has no such file.
        ValueError: the file is not there; nothing is downloaded.
    """

    pretrained_file_name_sha1: ClassVar[Mapping[str, str | None]] = dict.fromkeys(
        f"glove.{name}.txt" for name in _GLOVE.split()
    )

    def __init__(
        self,
        pretrained_file_name: str = "glove.840B.300d.txt",
        embedding_root: str = EMBEDDING_ROOT,
        init_unknown_vec: Callable[..., NDArray] = nd.zeros,
        vocabulary: Vocabulary | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._read(pretrained_file_name, embedding_root, init_unknown_vec, vocabulary)


@register
class FastText(_LocalEmbedding):
    """The vectors of fastText (Bojanowski and others, 2017), from a file on this machine.

    Arguments and errors are those of `GloVe`; the folder's name is `fasttext`.
    """

    pretrained_file_name_sha1: ClassVar[Mapping[str, str | None]] = dict.fromkeys(
        [
            "crawl-300d-2M.vec",
            *(f"wiki.{name}.vec" for name in _FAST_TEXT_LANGUAGES.split()),
            *(f"wiki.multi.{name}.vec" for name in _FAST_TEXT_ALIGNED.split()),
            "wiki-news-300d-1M-subword.vec",
            "wiki-news-300d-1M.vec",
        ]
    )

    def __init__(
        self,
        pretrained_file_name: str = "wiki.simple.vec",
        embedding_root: str = EMBEDDING_ROOT,
        init_unknown_vec: Callable[..., NDArray] = nd.zeros,
        vocabulary: Vocabulary | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._read(pretrained_file_name, embedding_root, init_unknown_vec, vocabulary)


class CustomEmbedding(_TokenEmbedding):
    """The vectors of a user's own file.

    Args:
        pretrained_file_path: the file: on each line a token and its numbers.
        elem_delim: what stands between them.
        encoding: the file's encoding.
        init_unknown_vec: makes the vector of unknown tokens, called with `shape=vec_len`.
        vocabulary: have its tokens alone.
        kwargs: `unknown_token` and `reserved_tokens` of `Vocabulary`.

    Raises:
        ValueError: there is no such file, or no numbers in it.
        AssertionError: lines of different lengths, or a `vocabulary` that is none.

    Example:
        >>> vectors = mx.contrib.text.embedding.CustomEmbedding("vectors.txt", elem_delim=" ")
    """

    def __init__(
        self,
        pretrained_file_path: str,
        elem_delim: str = " ",
        encoding: str = "utf8",
        init_unknown_vec: Callable[..., NDArray] = nd.zeros,
        vocabulary: Vocabulary | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._load_embedding(pretrained_file_path, elem_delim, init_unknown_vec, encoding)
        self._build_embedding_for_vocabulary(vocabulary)


class CompositeEmbedding(_TokenEmbedding):
    """The tokens of a vocabulary, each with its vectors in several embeddings side by side.

    Args:
        vocabulary: the tokens.
        token_embeddings: an embedding, or a list of them.

    Raises:
        AssertionError: one of them is something else.
    """

    def __init__(self, vocabulary: Vocabulary, token_embeddings: _TokenEmbedding | Sequence[_TokenEmbedding]) -> None:
        check_vocabulary(vocabulary)
        super().__init__()
        embeddings: list[Any] = token_embeddings if isinstance(token_embeddings, list) else [token_embeddings]
        for one in embeddings:
            if not isinstance(one, _TokenEmbedding):
                raise AssertionError(f"token_embeddings: expected embeddings, got {value_text(one)}")
        self._take(embeddings, vocabulary)


__getattr__ = module_getattr(__name__, __all__)
